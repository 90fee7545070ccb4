"""Experts keep quantised weights on a GPU, and give the tokens of dequantised ones.

Without a GPU, Triton's interpreter runs the kernels on a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from interpreter import require_triton
import pytest
import torch

require_triton()

from trioserve.config import ModelConfig  # noqa: E402
from trioserve.model.loading.choose_runtime import make_decoder  # noqa: E402
from trioserve.model.loading.files.facts import read_facts  # noqa: E402
from trioserve.model.loading.load import load_modules  # noqa: E402
from trioserve.model.runtimes.fused.decoder import FusedDecoder  # noqa: E402
from trioserve.model.runtimes.stored_weights import find_stored_experts  # noqa: E402

from ...checkpoints import (  # noqa: E402
    KEPT_EXPERTS,
    make_tiny_mixture,
    put_experts,
)
from ...conftest import make_oracle  # noqa: E402
from ...planning import Planner, make_prompt  # noqa: E402
from ...quantising import quantise  # noqa: E402
from .graphs import DEVICE  # noqa: E402

CONFIG = ModelConfig(device=DEVICE, dtype="float32", dequantize=True)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name != "gptq" else pytest.mark.matrix)
        for name in KEPT_EXPERTS
    ],
)
def test_a_checkpoint_gives_the_tokens_of_its_dequantised_experts(
    tmp_path: Path, name: str
) -> None:
    model_type, checkpoint, ending, format = KEPT_EXPERTS[name]
    model = make_tiny_mixture(model_type)
    model.save_pretrained(tmp_path)
    meant = quantise(tmp_path, *checkpoint, ending=ending)
    put_experts(model, meant)
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


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_plain_experts_are_quantised(tmp_path: Path, format: str) -> None:
    make_tiny_mixture("qwen3_moe").save_pretrained(tmp_path)
    loaded = load_modules(tmp_path, CONFIG, read_facts(tmp_path, CONFIG), "tiny")
    # It compares the logits with those of the modules.
    decoder = make_decoder(loaded, FusedDecoder, int8=True, format=format)
    networks = [layer[-1].body for layer in decoder.weights]
    assert {each.experts.first.format for each in networks} == {format}
