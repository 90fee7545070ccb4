"""Adapters in GGUF files compute what peft computes from the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
import pytest
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from trioserve.errors import InvalidAdapter
from trioserve.types.adapter import AdapterSource
from trioserve.weights import read_gguf_adapter

from ..planning import Planner, make_prompt
from .trained import IGNORED, Adapted, train

pytestmark = IGNORED

ENDS = {"lora_A.weight": "weight.lora_a", "lora_B.weight": "weight.lora_b"}
Tensors = dict[str, NDArray[np.float32]]


def convert(folder: Path, *, num_heads: int, num_kv_heads: int) -> Tensors:
    """Return the tensors of an adapter of a Llama in the form of llama.cpp.

    It turns the rows of queries and keys, as llama.cpp's LoraTorchTensor does.
    """
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    # The way back, by which models are read.
    processor: Any = LlamaTensorProcessor
    found = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, dot, kind = name.removeprefix("base_model.model.").partition(".lora_")
        own = table.get_name(module)
        numbers = tensor.numpy()
        if kind == "B.weight" and module.endswith(("q_proj", "k_proj")):
            heads = num_heads if module.endswith("q_proj") else num_kv_heads
            pairs = numbers.reshape(heads, 2, -1, numbers.shape[1])
            numbers = pairs.swapaxes(1, 2).reshape(numbers.shape)
            restored = processor._reverse_permute_weights(
                None, numbers, num_heads, heads
            )
            assert (restored == tensor.numpy()).all()
        found[f"{own}.{ENDS[f'lora_{kind}']}"] = numbers
    return found


def write(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    *,
    architecture: str = "llama",
    kind: str = "adapter",
    alpha: float | None = 16.0,
    half: bool = False,
    invocation: bool = False,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", kind)
    writer.add_string("adapter.type", "lora")
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    if invocation:
        writer.add_array("adapter.alora.invocation_tokens", [1, 2])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float16) if half else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def adapted(
    tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Adapted:
    folder = tmp_path_factory.mktemp("adapters") / "peft"
    base = tiny("llama").folder
    targets = ["q_proj", "k_proj", "v_proj", "down_proj"]
    train(base, folder, lora_alpha=16, target_modules=targets)
    return Adapted(base, {1: folder})


@pytest.fixture(scope="module")
def tensors(adapted: Adapted) -> Tensors:
    return convert(adapted.adapters[1], num_heads=4, num_kv_heads=2)


def test_a_gguf_file_computes_the_tokens_of_peft(
    tiny: Callable[..., Any], adapted: Adapted, tensors: Tensors, tmp_path: Path
) -> None:
    planner = Planner(tiny("llama").loaded, read_gguf_adapter=read_gguf_adapter)
    path = write(tmp_path / "adapter.gguf", tensors)
    source = AdapterSource(number=1, name="a", path=str(path))
    facts, weights = planner.runner.read_adapter(source)
    assert facts.rank == 8
    planner.runner.add_adapter(1, weights)
    sequences = [
        planner.begin(make_prompt(7, slot), slot=slot, adapter=slot % 2)
        for slot in range(3)
    ]
    planner.run(*sequences, num_tokens=8)
    adapted.check(*sequences)


def test_files_of_other_models_or_that_are_damaged_are_refused(
    tiny: Callable[..., Any], tensors: Tensors, tmp_path: Path
) -> None:
    runner = Planner(tiny("llama").loaded, read_gguf_adapter=read_gguf_adapter).runner
    first = "blk.0.attn_q.weight.lora_a"
    path = tmp_path / "french.gguf"

    def explain() -> str:
        with pytest.raises(InvalidAdapter) as caught:
            runner.read_adapter(AdapterSource(number=1, name="a", path=str(path)))
        return caught.value.reason

    assert "no such file" in explain()
    write(path, tensors, half=True)
    whole = path.read_bytes()
    for length in (0, 3, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "french.gguf is truncated" in explain()
    for expected, changes in {
        "its general.type is not 'adapter'": {"kind": "model"},
        "its adapter.lora.alpha is not a finite number": {"alpha": None},
        "general.architecture is 'qwen2', and the model's": {"architecture": "qwen2"},
        "adapter.alora.invocation_tokens is not supported": {"invocation": True},
    }.items():
        write(path, tensors, **changes)
        assert expected in explain()
    for expected, others in {
        "it has no tensors": None,
        f"{first} is missing": {first: None},
        "blk.0.attn_q has tensors of the shapes (8, 5)": {
            first: np.ones((8, 5), np.float32)
        },
        f"{first} has numbers that are not finite": {
            first: np.full((8, 32), np.nan, np.float32)
        },
        "blk.9.attn_q.weight.lora_a belongs to no module": {
            "blk.9.attn_q.weight.lora_a": tensors[first]
        },
        "token_embd.weight.lora_a belongs to no module": {
            "token_embd.weight.lora_a": tensors[first]
        },
        "output_norm.weight is not supported": {
            "output_norm.weight": np.ones((1, 32), np.float32)
        },
    }.items():
        kept = {} if others is None else tensors | others
        write(path, {name: each for name, each in kept.items() if each is not None})
        assert expected in explain()


def test_an_alpha_of_zero_leaves_the_matrices_and_blocks_are_dequantised(
    tiny: Callable[..., Any], tensors: Tensors, tmp_path: Path
) -> None:
    runner = Planner(tiny("llama").loaded, read_gguf_adapter=read_gguf_adapter).runner
    name = "blk.0.ffn_down.weight"
    for alpha, scale in ((0.0, 1.0), (4.0, 0.5)):
        path = write(tmp_path / "adapter.gguf", tensors, alpha=alpha, half=True)
        source = AdapterSource(number=1, name="a", path=str(path))
        _, weights = runner.read_adapter(source)
        change = weights.products["model.layers.0.mlp.down_proj"]
        b = tensors[f"{name}.lora_b"].astype(np.float16).astype(np.float32)
        assert np.array_equal(change.b.numpy(), b * np.float32(scale))
