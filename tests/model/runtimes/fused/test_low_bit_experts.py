"""Experts keep quantised weights on a GPU, and give the tokens of dequantised ones.

Without a GPU, Triton's interpreter runs the kernels on a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch import Tensor

require_triton()

from transformers.integrations.mxfp4 import (  # noqa: E402
    convert_moe_packed_tensors,
)

from trioserve.config import ModelConfig  # noqa: E402
from trioserve.model.loading.choose_runtime import make_decoder  # noqa: E402
from trioserve.model.loading.files.facts import read_facts  # noqa: E402
from trioserve.model.loading.load import load_modules  # noqa: E402
from trioserve.model.runtimes.fused.decoder import FusedDecoder  # noqa: E402
from trioserve.model.runtimes.stored_experts import find_stored_experts  # noqa: E402
from trioserve.testing.models import make_tiny_model  # noqa: E402

from ...checkpoints import GPTQ, Format, by_gptq  # noqa: E402
from ...conftest import make_oracle  # noqa: E402
from ...planning import Planner, make_prompt  # noqa: E402
from ...quantising import Tensors, quantise  # noqa: E402
from .graphs import DEVICE  # noqa: E402
from .test_low_bits import by_fine_float8  # noqa: E402

CONFIG = ModelConfig(device=DEVICE, dtype="float32", dequantize=True)

# Inputs that share a scale.
GROUP = 32

SIZES = {"hidden_size": 64, "num_hidden_layers": 2}


def by_mxfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Return codes of chance for the experts of gpt-oss, whose weights have inputs first."""
    num_experts, num_inputs, num_outputs = weight.shape
    chance = torch.Generator().manual_seed(0)
    shape = num_experts, num_outputs, num_inputs // GROUP
    codes = torch.randint(256, (*shape, 16), generator=chance, dtype=torch.uint8)
    scales = torch.randint(123, 126, shape, generator=chance, dtype=torch.uint8)
    meant = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)
    return {"_blocks": codes, "_scales": scales}, meant


# A model, a checkpoint, the ends of the names of its quantised weights, and their format.
CHECKPOINTS: dict[str, tuple[str, Format, str, str]] = {
    "mxfp4": ("gpt_oss", ({"quant_method": "mxfp4"}, by_mxfp4), "_proj", "mxfp4"),
    "gptq": (
        *("qwen2_moe", (GPTQ, lambda w: by_gptq(w, group=GROUP))),
        *("proj.weight", "int4"),
    ),
    "fine-grained FP8": (
        "qwen3_moe",
        ({"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}, by_fine_float8),
        "proj.weight",
        "fp8",
    ),
}


def make_model(model_type: str) -> Any:
    own = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    sizes = {"intermediate_size": 64} if model_type == "gpt_oss" else own
    return make_tiny_model(model_type, **SIZES, **sizes)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name != "gptq" else pytest.mark.matrix)
        for name in CHECKPOINTS
    ],
)
def test_a_checkpoint_gives_the_tokens_of_its_dequantised_experts(
    tmp_path: Path, name: str
) -> None:
    model_type, checkpoint, ending, format = CHECKPOINTS[name]
    model = make_model(model_type)
    model.save_pretrained(tmp_path)
    meant = quantise(tmp_path, *checkpoint, ending=ending)
    put(model, meant)
    oracle = make_oracle(model, DEVICE)

    facts = replace(read_facts(tmp_path, CONFIG), keeps_weights=True)
    loaded = load_modules(tmp_path, CONFIG, facts, "tiny")
    kept = [find_stored_experts(each) for each in loaded.model.modules()]
    formats = {each.format for stored in kept for each in stored.values()}
    assert formats == {format}
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=False)
    assert decoder.description == f"native triton, {format}"
    assert not any(find_stored_experts(each) for each in loaded.model.modules())

    planner = Planner(replace(loaded, native=decoder))
    prompt = make_prompt(6)
    sequence = planner.begin(prompt)
    planner.run(sequence, num_tokens=2, chunk=5)
    oracle.check(sequence.outputs, input_ids=torch.tensor([prompt]))


def put(model: Any, meant: Tensors) -> None:
    """Give a model dequantised weights, by their names in the files."""
    parameters = dict(model.named_parameters())
    for name, weight in meant.items():
        head, dot, tail = name.partition(".experts.")
        number, _, part = tail.partition(".")
        if not dot or not number.isdecimal():
            parameters[name].data = weight
            continue
        part = part.removesuffix(".weight")
        first = parameters[f"{head}.experts.gate_up_proj"].data[int(number)]
        gate, up = first.chunk(2)
        second = parameters[f"{head}.experts.down_proj"].data[int(number)]
        {"gate_proj": gate, "up_proj": up, "down_proj": second}[part].copy_(weight)


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_plain_experts_are_quantised(tmp_path: Path, format: str) -> None:
    make_model("qwen3_moe").save_pretrained(tmp_path)
    loaded = load_modules(tmp_path, CONFIG, read_facts(tmp_path, CONFIG), "tiny")
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=True, format=format)
    networks = [layer[-1].body for layer in decoder.weights]
    assert {each.experts.first.format for each in networks} == {format}
