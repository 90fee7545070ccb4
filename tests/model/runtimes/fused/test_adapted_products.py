"""Products with adapters on Triton's kernels; a machine with a GPU needs no peft for these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
import json
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
from safetensors.torch import save_file
import torch
from torch import Tensor, nn

from trioserve.config import ModelConfig
from trioserve.kernels.triton.tiles import AdapterTiles, cut_adapters
from trioserve.model.adapters.config import AdapterProblem
from trioserve.model.adapters.description import LowRank
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.step.layout import list_runs
from trioserve.types.adapter import AdapterSource

from ...planning import Planner, make_prompt
from .graphs import DEVICE

require_triton()

from trioserve.model.runtimes.fused import adapters  # noqa: E402
from trioserve.model.runtimes.fused.products import Product, join_products  # noqa: E402


@dataclass
class Layer:
    """A product of two modules, whose outputs are in another order."""

    modules: Sequence[nn.Linear]
    product: Product
    adapters: adapters.FusedAdapters

    @classmethod
    def make(cls, sizes: Sequence[int], num_inputs: int) -> Layer:
        torch.manual_seed(0)
        modules = [nn.Linear(num_inputs, size, device=DEVICE) for size in sizes]
        product = join_products(modules, torch.randperm(sum(sizes)))
        names: dict[nn.Module, str] = {
            module: str(i) for i, module in enumerate(modules)
        }
        device = torch.device(DEVICE)
        return cls(
            modules,
            product,
            adapters.FusedAdapters([product], names, torch.float32, device),
        )

    def change(self, rank: int, seed: int, *, scales: bool = False) -> LowRank:
        chance = torch.Generator().manual_seed(seed)
        module = self.modules[0]

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance)

        return LowRank(
            a=draw(rank, module.in_features) / module.in_features,
            b=draw(module.out_features, rank),
            output_scale=draw(module.out_features) if scales else None,
        )

    def run(
        self, given: Tensor, runs: Sequence[tuple[int, int]], num_tokens: int
    ) -> Tensor:
        output = self.product.multiply(given)
        cut = cut_adapters(list_runs(*zip(*runs)), num_tokens)
        numbers = torch.tensor(cut, dtype=torch.int32)
        tiles = AdapterTiles(
            numbers=numbers.view(-1, 3).to(DEVICE), num_tokens=num_tokens
        )
        self.adapters.change(self.product, given, output, tiles)
        return output

    def expect(
        self, given: Tensor, changes: Sequence[LowRank | None], counts: Sequence[int]
    ) -> Tensor:
        """Return the outputs if the first module is changed for each part of the tokens."""
        module = self.modules[0]
        rows = []
        ends = [0, *torch.tensor(counts).cumsum(0).tolist()]
        for change, (begin, end) in zip(changes, pairwise(ends)):
            part = given[begin:end]
            weight, scale = module.weight, 1.0
            if change is not None:
                weight = weight + (change.b @ change.a).to(DEVICE)
                if change.output_scale is not None:
                    scale = change.output_scale.to(DEVICE)
            rows.append(scale * (part @ weight.T) + module.bias)
        others = [each(given) for each in self.modules[1:]]
        joined = torch.cat((torch.cat(rows), *others), dim=1)
        return joined[:, self.product.get_order().to(DEVICE)]


@pytest.mark.parametrize("num_tokens", [16, 64])
@torch.inference_mode()
def test_tiles_and_the_order_of_outputs(num_tokens: int) -> None:
    layer = Layer.make([37, 21], 50)
    changes = [layer.change(18, 1, scales=True), layer.change(5, 2)]
    for number, change in enumerate(changes, 1):
        layer.adapters.add(number, layer.adapters.pack({"0": change}))
    counts = 17, 2, 66, 1
    given = torch.randn(sum(counts), 50, device=DEVICE)
    actual = layer.run(given, [*zip((1, 0, 2, 1), counts)], num_tokens)
    own = [changes[0], None, changes[1], changes[0]]
    expected = layer.expect(given, own, counts)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    for name, module in zip("01", layer.modules):
        assert torch.equal(layer.adapters.read(name), module.weight.cpu())


@torch.inference_mode()
def test_more_slots_and_a_larger_rank_keep_all_adapters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "_FEWEST_SLOTS", 2)
    monkeypatch.setattr(adapters, "_LEAST_WIDTH", 16)
    # Enough inputs for two splits.
    layer = Layer.make([9], 520)
    grown: list[int] = []
    changes = [layer.change(rank, rank) for rank in (2, 3, 20)]
    for number, change in enumerate(changes, 1):
        layer.adapters.on_growth = lambda number=number: grown.append(number)
        layer.adapters.add(number, layer.adapters.pack({"0": change}))
    assert grown == [1, 2, 3], "a product, a slot, and the rank"
    layer.adapters.remove(1)
    # It has the slot of the first one.
    changes[0] = layer.change(4, 4)
    layer.adapters.add(4, layer.adapters.pack({"0": changes[0]}))
    assert len(grown) == 3
    given = torch.randn(3, 520, device=DEVICE)
    actual = layer.run(given, [(1, 1), (2, 1), (3, 1)], 16)
    expected = layer.expect(given, changes, (1, 1, 1))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def fail(*given: Any, **others: Any) -> None:
    raise RuntimeError("no such instruction")


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [(lambda *_, **__: None, "output would differ"), (fail, "no such instruction")],
)
@torch.inference_mode()
def test_kernels_that_fail_on_a_device_run_no_adapter(
    monkeypatch: pytest.MonkeyPatch, kernels: Callable[..., None], reason: str
) -> None:
    layer = Layer.make([9], 12)
    change = layer.change(2, 1)
    monkeypatch.setattr(adapters, "change_outputs", kernels)
    with pytest.raises(AdapterProblem, match=f"{reason}.* --kernels torch"):
        layer.adapters.pack({"0": change})


# Some of them are of experts and their routers.
SECOND = "k_proj", "o_proj", "up_proj", "gate_up_proj", "gate", "router"


def save(folder: Path, model: LoadedModel, rank: int, targets: Sequence[str]) -> Path:
    """Save an adapter of random numbers in peft's format."""
    chance = torch.Generator().manual_seed(rank)
    tensors = {}
    for name, (num_outputs, num_inputs) in model.products.items():
        if name.endswith(tuple(targets)):
            place = f"base_model.model.{name}"
            a, b = (
                torch.randn(shape, generator=chance)
                for shape in ((rank, num_inputs), (num_outputs, rank))
            )
            tensors |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "target_modules": [*targets]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def write(model: LoadedModel, folders: Sequence[Path]) -> list[list[int]]:
    """Return what a model writes with adapters, and without one."""
    planner = Planner(model)
    planner.runner.warm_up()
    sequences = []
    # The second adapter comes while the first one runs.
    starts = (1, 33, True), (0, 1, False), (2, 12, True), (1, 5, False)
    for slot, (number, length, is_new) in enumerate(starts):
        if is_new:
            path = str(folders[number - 1])
            source = AdapterSource(number=number, name=str(number), path=path)
            planner.runner.add_adapter(number, planner.runner.read_adapter(source)[1])
        prompt = make_prompt(length, slot)
        sequences.append(planner.begin(prompt, slot=slot, adapter=number))
        planner.step((sequences[-1], length), *((s, 1) for s in sequences[:-1]))
    planner.run(*sequences, num_tokens=16)
    return [each.outputs for each in sequences]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mixtral", "gpt_oss"])
def test_a_gpu_runs_adapters_in_graphs(
    tiny: Callable[..., Any], tmp_path: Path, model_type: str, dtype: Any
) -> None:
    """As transformers' modules do with hooks; in 16 bits other tokens may win."""
    model = tiny(model_type, DEVICE)
    folders = [
        save(tmp_path / "1", model.loaded, 4, ["q_proj", "v_proj", "down_proj"]),
        save(tmp_path / "2", model.loaded, 19, SECOND),
    ]
    config = ModelConfig(device=DEVICE, dtype=dtype, kernels="native")
    loaded = load_model(model.folder, config, name="tiny")
    assert loaded.info.kernels == "native triton"
    outputs = write(loaded, folders)
    if dtype == "float32":
        assert outputs == write(model.loaded, folders)
        assert len({*map(tuple, outputs)}) == len(outputs)
