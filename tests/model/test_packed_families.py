"""GGUF files of hybrids run as they are, and compute what their dequantised numbers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind
from gguf_families import MODELS, make_model, write_gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trioserve.config import ModelConfig
from trioserve.model.loading.packed import load_packed
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check.compare import measure_distance
from trioserve.model.self_check.steps import COMPARED_TOKENS, make_check
from trioserve.weights import read_gguf, resolve_description
from trioserve.weights.gguf_families import read_tensors

from .planning import compute_on_kernels

# As in test_packed.py.
FINE_ROUNDING = 1e-3

# With inputs of 8 bits, and with bfloat16. A wrong formula gives 0.1 or more.
ROUNDING = 0.05

pytestmark = [pytest.mark.usefixtures("needs_kernels"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def mix(name: str) -> Kind:
    """Choose types as llama.cpp's mixtures do: several among the products of one input."""
    if "ssm_alpha" in name or "ssm_beta" in name:
        return Kind.F32
    others = {"attn_v": Kind.Q8_0, "attn_qkv": Kind.Q5_1, "down": Kind.Q8_0}
    others |= {"token_embd": Kind.Q8_0, "ssm_ba": Kind.BF16}
    return next((kind for part, kind in others.items() if part in name), Kind.Q4_1)


def load(path: Path, **options: Any) -> LoadedModel | None:
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu", **{"dtype": "float32", **options})
    return load_packed(folder, read_gguf(path), config, name="tiny")


def read_oracle(path: Path) -> PreTrainedModel:
    """Return transformers' model with the numbers of a file."""
    config = AutoConfig.from_pretrained(resolve_description(str(path)).folder)
    oracle: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32
    )
    oracle.load_state_dict(read_tensors(read_gguf(path), oracle, torch.float32))
    return oracle.eval()


@torch.inference_mode()
def compare(loaded: LoadedModel, oracle: PreTrainedModel) -> float:
    actual = compute_on_kernels(loaded)
    _, inputs = make_check(loaded.info.vocab_size)
    expected: Any = oracle(input_ids=inputs.input_ids, use_cache=False)
    return measure_distance(expected.logits[0][COMPARED_TOKENS], actual)


@pytest.mark.parametrize("family", MODELS)
def test_the_blocks_of_a_file_compute_what_its_numbers_compute(
    family: str, tmp_path: Path
) -> None:
    model = make_model(family)
    path = write_gguf(tmp_path / "tiny.gguf", family, model, kinds=mix)
    loaded = load(path)
    assert loaded is not None, "kernels can run it"
    assert compare(loaded, read_oracle(path)) < FINE_ROUNDING


def mix_k(name: str) -> Kind:
    """Choose types as llama.cpp's mixture Q4_K_M does."""
    if "ssm_alpha" in name or "ssm_beta" in name:
        return Kind.F32
    others = {"attn_v": Kind.Q6_K, "attn_qkv": Kind.Q5_K, "down": Kind.Q6_K}
    return next((kind for part, kind in others.items() if part in name), Kind.Q4_K)


def test_heads_of_values_move_within_blocks(tmp_path: Path) -> None:
    """llama.cpp orders the columns of a product by heads, of which a block has eight."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    sizes |= {"linear_value_head_dim": 32, "linear_num_value_heads": 8}
    model = make_model("qwen35", **sizes)
    path = write_gguf(tmp_path / "tiny.gguf", "qwen35", model, kinds=mix_k)
    loaded, oracle = load(path), read_oracle(path)
    assert loaded is not None
    assert compare(loaded, oracle) < FINE_ROUNDING
    # No weight of a product is read into memory.
    matrices = [each for each in loaded.model.parameters() if each.dim() == 2]
    assert {each.untyped_storage().nbytes() for each in matrices} == {4}
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    for options in ({"dtype": "auto"}, {"quantization": "int8"}):
        rounded = load(path, **options)
        assert rounded is not None
        assert compare(rounded, oracle) < ROUNDING
