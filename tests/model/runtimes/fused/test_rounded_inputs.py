"""Inputs of products with FP8 weights have eight bits, where checkpoint and device say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

require_triton()

from trioserve.config import ModelConfig  # noqa: E402
from trioserve.kernels.stored import quantise  # noqa: E402
from trioserve.kernels.triton.round_inputs import (  # noqa: E402
    ROUNDED_TOKENS,
    round_tokens,
)
from trioserve.model.loading.choose_runtime import make_decoder  # noqa: E402
from trioserve.model.loading.dequantise import find_format  # noqa: E402
from trioserve.model.loading.dequantise.formats import FINE_FP8  # noqa: E402
from trioserve.model.loading.files.facts import read_facts  # noqa: E402
from trioserve.model.loading.load import load_modules  # noqa: E402
from trioserve.model.runtimes.fused import low_bits as low_bits_module  # noqa: E402
from trioserve.model.runtimes.fused.decoder import FusedDecoder  # noqa: E402
from trioserve.model.runtimes.fused.low_bits import (  # noqa: E402
    LowBits,
    LowBitWeight,
)
from trioserve.model.runtimes.loaded import LoadedModel  # noqa: E402
from trioserve.model.runtimes.stored_weights import store_linear  # noqa: E402
from trioserve.model.self_check.compare import measure_distance  # noqa: E402
from trioserve.testing.models import make_tiny_model  # noqa: E402

from ...checkpoints import (  # noqa: E402
    by_float8,
    by_float8_blocks,
    by_int8,
    compressed,
)
from .graphs import DEVICE  # noqa: E402

# Layers of the deep model; more take longer in the interpreter, and differ by no more.
DEPTH = 8

# No CPU multiplies with scales of groups.
ON_CPU = pytest.mark.skipif(DEVICE != "cpu", reason="is about CPUs")


def group(**inputs: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"input_activations": inputs or None}}}


@pytest.mark.parametrize(
    "method, settings, rounds",
    [
        ("compressed-tensors", group(num_bits=8, type="float", dynamic=True), True),
        ("compressed-tensors", group(num_bits=8, type="float", dynamic=False), True),
        ("compressed-tensors", group(), False),
        ("compressed-tensors", group(num_bits=8, type="int"), False),
        ("modelopt", {"quant_algo": "FP8"}, True),
        ("fbgemm_fp8", {}, True),
        ("fp8", {"activation_scheme": "static"}, True),
        (FINE_FP8, {"activation_scheme": "dynamic"}, True),
    ],
)
def test_a_checkpoint_says_whether_inputs_have_eight_bits(
    method: str, settings: dict[str, Any], rounds: bool
) -> None:
    parts, _ = by_float8(torch.ones(16, 32))
    parts["weight_scale_inv"] = parts["weight_scale"]
    (form,) = find_format(method, {"format": "float-quantized", **settings})
    assert form.keep is not None
    assert form.keep(parts).rounds_inputs == rounds


def test_int8_weights_leave_their_inputs() -> None:
    parts, _ = by_int8(torch.ones(16, 32))
    settings = compressed("int-quantized", **group(num_bits=8, type="int"))
    (form,) = find_format("compressed-tensors", settings)
    assert form.keep is not None and not form.keep(parts).rounds_inputs
    assert not quantise(torch.ones(16, 64), "int8").rounds_inputs


def load_deep(folder: Path, num_layers: int) -> LoadedModel:
    """Load a model of random weights, whose layers change what they read as those of wide ones."""
    config = ModelConfig(device=DEVICE, dtype="bfloat16")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "initializer_range": 0.3}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    model = make_tiny_model("llama", **sizes, num_hidden_layers=num_layers)
    model.save_pretrained(folder)
    return load_modules(folder, config, read_facts(folder, config), "tiny")


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time, and other tests try all numbers of tokens."""
    monkeypatch.setattr(low_bits_module, "SIZES", (1,))
    for name in ("DEQUANTISED_TOKENS", "ROUNDED_TOKENS"):
        monkeypatch.setattr(low_bits_module, name, 17)


@pytest.mark.usefixtures("few_tokens")
def test_a_deep_model_is_compared_before_its_inputs_are_rounded(tmp_path: Path) -> None:
    """Rounded inputs and weights would differ from exact ones by 0.6 of the logits' size."""
    loaded = load_deep(tmp_path, DEPTH)
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=True, format="fp8")
    assert decoder.description == "native triton, fp8, inputs in fp8"
    weight = decoder.weights[0][0].products[0].weight
    assert isinstance(weight, LowBitWeight)
    given = draw(3, 64).to(DEVICE, torch.bfloat16)
    exact = linear(given, weight.stored.restore(torch.bfloat16))
    assert 1e-2 < measure_distance(exact, weight.multiply(given, None)) < 5e-2


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("name", ["multiply_rounded", "round_tokens"])
def test_inputs_stay_as_they_are_if_their_product_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    caplog.set_level("INFO", "trioserve")
    right = getattr(low_bits_module, name)

    def compute(given: Tensor, *others: Any) -> Tensor:
        output: Tensor = right(given, *others)
        # The scale of another token.
        output[-1] *= 1.25
        return output

    monkeypatch.setattr(low_bits_module, name, compute)
    loaded = load_deep(tmp_path, 1)
    decoder = make_decoder(loaded, FusedDecoder, int8=True, format="fp8")
    assert decoder.description == "native triton, fp8"
    fault = "64 x 64 keep their inputs: its output would differ by "
    assert caplog.text.count(f"products with FP8 weights of {fault}") == 1


def make_weight(
    numbers: Tensor, dtype: torch.dtype, *, block: int | None = None
) -> tuple[LowBitWeight, LowBits]:
    """Make the weight of a product, as a checkpoint has it, with blocks or without."""
    module = torch.nn.Linear(*reversed(numbers.shape), device=DEVICE, dtype=dtype)
    settings: dict[str, Any] = {"weight_block_size": block and [block, block]}
    parts, _ = (
        by_float8(numbers) if not block else by_float8_blocks(numbers, block=block)
    )
    parts["weight_scale_inv"] = parts["weight_scale"]
    (form,) = find_format(FINE_FP8, settings)
    assert form.keep is not None
    low_bits = LowBits(dtype)
    store_linear(module, form.keep(parts).to(torch.device(DEVICE)), dtype)
    made = low_bits.join([module], None)
    assert made is not None
    low_bits.round_inputs()
    return made, low_bits


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_few_and_many_tokens_have_the_same_inputs() -> None:
    made, _ = make_weight(draw(32, 96) / 20, torch.bfloat16)
    bias = draw(32).to(DEVICE, torch.bfloat16)
    given = draw(ROUNDED_TOKENS, 96).to(DEVICE, torch.bfloat16)
    many = made.multiply(given, bias)
    few = made.multiply(given[:3], bias)
    assert measure_distance(few, many[:3], dim=1) < 2e-2
    exact = round_tokens(given[:3], 0).float() @ made.stored.restore(torch.float32).T
    assert measure_distance(exact + bias.float(), few, dim=1) < 2e-2


def test_inputs_of_other_types_stay_as_they_are() -> None:
    made, low_bits = make_weight(draw(32, 96) / 20, torch.float32)
    assert made.factors is None and low_bits.describe() == "fp8"


@ON_CPU
def test_inputs_stay_as_they_are_if_the_device_does_not_multiply_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "trioserve")
    made, low_bits = make_weight(draw(32, 256) / 20, torch.bfloat16, block=128)
    assert made.factors is None and low_bits.describe() == "fp8"
    assert (
        "products with FP8 weights of 32 x 256 keep their inputs: it fails"
        in caplog.text
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("block", [None, 128])
def test_a_gpu_multiplies_eight_bits(block: int | None) -> None:
    """The size of Llama-3.1-8B's products of attention."""
    if torch.cuda.get_device_capability() < ((9, 0) if block else (8, 9)):
        pytest.skip("it does not")
    made, low_bits = make_weight(draw(4096, 4096) / 60, torch.bfloat16, block=block)
    assert made.factors is not None
    assert low_bits.describe() == "fp8, inputs in fp8"
