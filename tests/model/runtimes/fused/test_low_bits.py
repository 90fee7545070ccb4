"""Quantised weights stay as they are on a GPU, and give the tokens of dequantised ones.

Without a GPU, Triton's interpreter runs the kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

require_triton()

from trioserve.config import ModelConfig  # noqa: E402
from trioserve.errors import InvalidConfig, UnsupportedQuantization  # noqa: E402
from trioserve.kernels.stored import quantise as quantise_weight  # noqa: E402
from trioserve.kernels.triton.products import (  # noqa: E402
    SIZES,
    Gates,
    multiply_plain,
)
from trioserve.model.loading.choose_runtime import (  # noqa: E402
    load_on_kernels,
    make_decoder,
)
from trioserve.model.loading.files.config_file import check_dequantisation  # noqa: E402
from trioserve.model.loading.files.facts import read_facts  # noqa: E402
from trioserve.model.loading.load import load_modules  # noqa: E402
from trioserve.model.open import load  # noqa: E402
from trioserve.model.runtimes.fused import low_bits as low_bits_module  # noqa: E402
from trioserve.model.runtimes.fused.decoder import FusedDecoder  # noqa: E402
from trioserve.model.runtimes.fused.low_bits import (  # noqa: E402
    LowBits,
    LowBitWeight,
)
from trioserve.model.runtimes.fused.networks import Dense  # noqa: E402
from trioserve.model.runtimes.fused.products import (  # noqa: E402
    PlainWeight,
    Product,
)
from trioserve.model.runtimes.loaded import LoadedModel  # noqa: E402
from trioserve.model.runtimes.stored_weights import (  # noqa: E402
    StoredLinear,
    store_linear,
)
from trioserve.model.self_check.steps import make_tables  # noqa: E402

from ...checkpoints import (  # noqa: E402
    AWQ,
    KEPT,
    KEPT_GROUP,
    by_awq,
    by_packing,
    compressed,
    save_kept,
)
from ...conftest import make_oracle  # noqa: E402
from ...planning import Planner, make_prompt  # noqa: E402
from ...quantising import Tensors  # noqa: E402
from .graphs import DEVICE  # noqa: E402

# The others take as long, and differ in little but the reading.
FIRST = ("gptq by act", "W8A16", "fine-grained FP8")

CONFIG = ModelConfig(device=DEVICE, dtype="float32", dequantize=True)


def load_kept(folder: Path) -> LoadedModel:
    """Load the modules of a model as on a GPU."""
    facts = replace(read_facts(folder, CONFIG), keeps_weights=True)
    return load_modules(folder, CONFIG, facts, "tiny")


def list_kept(loaded: LoadedModel) -> list[StoredLinear]:
    return [each for each in loaded.model.modules() if isinstance(each, StoredLinear)]


# Random weights of eight bits are large.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FIRST else pytest.mark.matrix)
        for name in KEPT
    ],
)
def test_a_checkpoint_gives_the_tokens_of_its_dequantised_weights(
    tmp_path: Path, name: str
) -> None:
    checkpoint, format = KEPT[name]
    model, meant = save_kept(tmp_path, checkpoint)
    oracle = make_oracle(model, DEVICE)

    loaded = load_kept(tmp_path)
    kept = list_kept(loaded)
    assert len(kept) == len(meant) == 7
    assert {each.stored.format for each in kept if each.stored} == {format}
    decoder = make_decoder(loaded, FusedDecoder, int8=False)
    assert decoder.description == f"native triton, {format}"
    assert not any(each.stored for each in kept)

    planner = Planner(replace(loaded, native=decoder))
    prompt = make_prompt(6)
    sequence = planner.begin(prompt)
    planner.run(sequence, num_tokens=2, chunk=5)
    oracle.check(sequence.outputs, input_ids=torch.tensor([prompt]))

    name = "model.layers.0.self_attn.k_proj"
    tables = make_tables([prompt], 8, loaded.device)
    layers = decoder.open(tables, num_blocks=1)
    assert torch.equal(layers.adapters.read(name), meant[f"{name}.weight"])


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_plain_weights_are_quantised_but_for_the_head(
    tiny: Callable[..., Any], format: str
) -> None:
    folder = tiny("llama", DEVICE).folder
    facts = read_facts(folder, CONFIG)
    loaded = load_modules(folder, CONFIG, facts, "tiny")
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=True, format=format)
    assert decoder.description == f"native triton, {format}"
    assert decoder.head is not None and isinstance(decoder.head.weight, PlainWeight)
    mixing, network = decoder.weights[0]
    for product in (*mixing.products, *network.products):
        assert isinstance(product.weight, LowBitWeight)


def test_modules_run_with_dequantised_weights(tmp_path: Path) -> None:
    _, meant = save_kept(tmp_path, KEPT["awq"][0])
    loaded = load_on_kernels(
        lambda: load_kept(tmp_path),
        replace(CONFIG, kernels="torch"),
        lambda: load_modules(tmp_path, CONFIG, read_facts(tmp_path, CONFIG), "tiny"),
    )
    assert not list_kept(loaded)
    found = dict(loaded.model.named_parameters())
    assert torch.equal(
        found["model.layers.0.mlp.down_proj.weight"].cpu(),
        meant["model.layers.0.mlp.down_proj.weight"],
    )


def test_a_weight_that_the_kernels_cannot_read_is_dequantised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trioserve")
    save_kept(tmp_path, (AWQ, by_awq))
    assert not list_kept(load_kept(tmp_path))
    assert "7 weights are dequantised, such as model" in caplog.text
    assert "mlp.down_proj.weight, which has groups of 8 inputs" in caplog.text


# Random weights of eight bits are large.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_modules_of_different_formats_are_dequantised_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Queries have weights of four bits, keys and values of eight."""
    caplog.set_level("INFO", "trioserve")

    def quantise_one(weight: Tensor) -> tuple[Tensors, Tensor]:
        bits = 4 if weight.shape[0] == weight.shape[1] else 8
        return by_packing(weight, bits=bits, group=KEPT_GROUP)

    save_kept(tmp_path, (compressed("pack-quantized"), quantise_one))
    loaded = load_kept(tmp_path)
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=False)
    assert isinstance(decoder.weights[0][0].products[0].weight, PlainWeight)
    assert decoder.description == "native triton, int4, int8"
    assert "1 products are dequantised: their modules differ in formats" in caplog.text


def test_fp8_is_refused_on_a_cpu(tiny: Callable[..., Any]) -> None:
    config = ModelConfig(device="cpu", quantization="fp8")
    with pytest.raises(InvalidConfig, match="quantization.*fp8 is for GPUs"):
        load(tiny("llama").folder, config, name="tiny")


def test_a_model_without_kernels_tells_why_its_weights_must_be_dequantised(
    tmp_path: Path,
) -> None:
    save_kept(tmp_path, KEPT["awq"][0])
    config = replace(CONFIG, dequantize=False)
    with pytest.raises(UnsupportedQuantization, match=r"\(it has experts\): --deq"):
        check_dequantisation(tmp_path, config, "it has experts")
    check_dequantisation(tmp_path, CONFIG, "it has experts")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", KEPT)
def test_a_gpu_keeps_quantised_weights(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trioserve")
    checkpoint, format = KEPT[name]
    save_kept(tmp_path, checkpoint)
    loaded = load(tmp_path, ModelConfig(device="cuda", dtype="bfloat16"), name="tiny")
    assert loaded.info.kernels == "native triton"
    assert f"kernels: native triton, {format}" in caplog.text


def test_few_tokens_are_multiplied_by_our_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it computes what cuBLAS does; a device decides."""
    numbers, given = torch.randn(70, 96).to(DEVICE), torch.randn(20, 96).to(DEVICE)
    if DEVICE == "cpu":
        assert type(LowBits(torch.float32).hold(numbers)) is PlainWeight
    monkeypatch.setattr(low_bits_module, "can_multiply", lambda weight: True)
    launched = []

    def multiply(*given: Any) -> Tensor:
        launched.append(len(given[0]))
        return multiply_plain(*given)

    monkeypatch.setattr(low_bits_module, "multiply_plain", multiply)
    weight = LowBits(torch.float32).hold(numbers)
    launched.clear()
    for count in (1, 16, 17):
        output = weight.multiply(given[:count], None)
        assert torch.allclose(output, linear(given[:count], numbers), atol=1e-4)
        gates, others = linear(given[:count], numbers).chunk(2, dim=1)
        weighed = weight.weigh(given[:count], None, "silu", 1.0)
        if count == 17:
            assert weighed is None
        else:
            assert weighed is not None
            assert torch.allclose(weighed, silu(gates) * others, atol=1e-4)
    assert launched == [1, 1, 16, 16]

    monkeypatch.setattr(low_bits_module, "multiply_plain", lambda *given: output[:16])
    assert type(LowBits(torch.float32).hold(numbers)) is PlainWeight


def test_no_step_waits_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels depend on the shape of a weight, and on whether its outputs are gates."""
    tried, launched = [], []

    def multiply(given: Tensor, *others: Any) -> Tensor:
        launched.append((len(given), others[-1]))
        return given

    monkeypatch.setattr(
        low_bits_module, "_find_fault", lambda weight, _: tried.append(weight.shape)
    )
    monkeypatch.setattr(low_bits_module, "multiply_stored", multiply)
    low_bits = LowBits(torch.float32)
    for shape in (32, 64), (64, 32), (32, 64):
        module = torch.nn.Linear(*reversed(shape), device=DEVICE)
        stored = quantise_weight(module.weight.detach(), "int8")
        store_linear(module, stored, torch.float32)
        weight = low_bits.join([module], None)
        assert weight is not None
    low_bits.allocate()
    assert tried == [(32, 64), (64, 32)]
    product = Product(modules=(), weight=weight)
    dense = Dense(
        inputs=product,
        output=product,
        has_gate=True,
        gate_scale=0.5,
        activation="silu",
    )
    dense.compile(torch.float32)
    assert launched == [(size, Gates("silu", 0.5)) for size in SIZES]
