"""GGUF files of hybrids become the models that they were written from."""

from __future__ import annotations

from collections.abc import Callable
import json
import math
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Kind, GGUFWriter
from gguf_families import MODELS, make_model, mix_oss, write_gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from trioserve.errors import UnsupportedModel
from trioserve.weights import resolve_weights
from trioserve.weights.gguf_families import Unreadable, find_family

pytestmark = [pytest.mark.usefixtures("cache_home"), pytest.mark.slow]


@torch.inference_mode()
@pytest.mark.parametrize("family", MODELS)
def test_a_file_becomes_the_model_that_it_was_written_from(
    family: str, tmp_path: Path
) -> None:
    model = make_model(family)
    path = write_gguf(tmp_path / "tiny.gguf", family, model)
    folder = resolve_weights(str(path)).folder
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name, numbers in model.state_dict().items():
        # The factors of Falcon-H1 are in its weights.
        if family != "falcon-h1":
            torch.testing.assert_close(read.state_dict()[name], numbers, msg=name)
    ids = torch.arange(70)[None] * 7 % 64
    # llama.cpp keeps -exp(A_log), and factors of the header have 32 bits.
    actual, expected = (each(ids, use_cache=False).logits for each in (read, model))
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] == 2


def test_blocks_of_mxfp4_become_numbers(tmp_path: Path) -> None:
    model = make_model("gpt-oss")
    path = write_gguf(tmp_path / "tiny.gguf", "gpt-oss", model, kinds=mix_oss)
    folder = resolve_weights(str(path)).folder
    read = AutoModelForCausalLM.from_pretrained(folder)
    for name in ("gate_up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.{name}"
        # Blocks lie along the inputs.
        rows = model.get_parameter(name).detach().transpose(1, 2).contiguous()
        blocks = gguf.quantize(rows.numpy(), Kind.MXFP4)
        numbers = torch.from_numpy(gguf.dequantize(blocks, Kind.MXFP4))
        # Codes of four bits lose nothing in bfloat16.
        assert read.get_parameter(name).equal(numbers.transpose(1, 2).bfloat16())


def test_gates_with_other_shapes_than_what_they_weigh_are_refused() -> None:
    family = find_family("gpt-oss")
    assert family is not None
    rules = family.make_rules(None)
    for kind in ("weight", "bias"):
        join = rules[f"ffn_gate_exps.{kind}"].join_parts
        join([torch.ones(2, 3, 4)] * 2)
        for others in ([], [torch.ones(2, 5, 4)]):
            with pytest.raises(Unreadable, match="do not match their up projections"):
                join([torch.ones(2, 3, 4), *others])


def add_unknown_tensor(writer: GGUFWriter) -> None:
    writer.add_tensor("blk.0.other.weight", np.zeros((2, 2), np.float32))


def remove_entry(key: str) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.kv_data[0].__delitem__(key)


@pytest.mark.parametrize(
    ("family", "add", "reason"),
    [
        ("lfm2", add_unknown_tensor, "the tensor blk.0.other.weight is not known"),
        ("lfm2", lambda w: w.add_causal_attention(False), "the model is an encoder"),
        (
            *("lfm2", remove_entry("lfm2.shortconv.l_cache")),
            "the header has no lfm2.shortconv.l_cache",
        ),
        (
            *("granite", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)),
            "the scaling of its rotary angles is yarn, not none",
        ),
        (
            *("gpt-oss", remove_entry("gpt-oss.rope.scaling.type")),
            "the scaling of its rotary angles is none, not yarn",
        ),
        *(
            ("gpt-oss", lambda w, count=count: w.add_expert_used_count(count), reason)
            for count, reason in (
                (0, "a token goes to 0 of 4 experts"),
                (5, "a token goes to 5 of 4 experts"),
            )
        ),
        (
            *("gpt-oss", lambda w: w.add_rope_scaling_factor(math.nan)),
            "its rotary angles are scaled by nan",
        ),
        (
            *("granitehybrid", lambda w: w.add_rope_scaling_finetuned(True)),
            "it is a Bamba, or has rotary angles",
        ),
        (
            *(
                "lfm2moe",
                lambda w: w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX),
            ),
            "its experts are not chosen by sigmoids",
        ),
        (
            *("qwen35", lambda w: w.add_tokenizer_pre("klingon")),
            "its text is split by the rule klingon",
        ),
        (
            *("nemotron_h_moe", lambda w: w.add_expert_group_count(2)),
            "its experts are in groups",
        ),
        # The header counts one layer more than the file has.
        (
            *("qwen35", lambda w: w.add_block_count(5)),
            "the GGUF file has no tensor for model.layers.4",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(
    family: str, add: Callable[[GGUFWriter], None], reason: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", family, make_model(family), add)
    with pytest.raises(UnsupportedModel) as caught:
        resolve_weights(str(path))
    architecture = family.partition(" ")[0]
    assert str(caught.value).startswith(
        f"the architecture {architecture} is not supported: {reason}"
    )


def test_other_rotary_angles_than_gemma_4s_are_refused() -> None:
    family = find_family("gemma4")
    assert family is not None
    check = family.make_rules(None)["rope_freqs.weight"].undo
    check(torch.tensor([1.0, 1e30, 1e30, 1e30]))
    for divisors in ([1.0, 1.0, 1e30, 1e30], [1.0, 1e30, 1e30, 1.0], [2.0] * 4):
        with pytest.raises(Unreadable, match="other angles are rotated"):
            check(torch.tensor(divisors))


def test_blocks_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    model = make_model("qwen35")

    def add(writer: GGUFWriter) -> None:
        writer.add_block_count(5)
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.zeros((2, 2), np.float32))

    path = write_gguf(tmp_path / "tiny.gguf", "qwen35", model, add)
    folder = resolve_weights(str(path)).folder
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 4
