"""GGUF files of hybrids run as they are, and compute what their dequantised numbers compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as Kind
from gguf_families import MODELS, make_model, mix_oss, write_gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trioserve.model.adapters.description import LowRank
from trioserve.model.self_check.compare import measure_distance
from trioserve.model.self_check.steps import COMPARED_TOKENS, make_check
from trioserve.weights import read_gguf, resolve_description
from trioserve.weights.gguf_families import read_tensors

from .test_packed import FINE_ROUNDING, ROUNDING, compare, load

pytestmark = [
    pytest.mark.usefixtures("needs_kernels", "own_cache"),
    pytest.mark.slow,
]


def mix(name: str) -> Kind:
    """Choose types as llama.cpp's mixtures do: several among the products of one input."""
    if "ssm_alpha" in name or "ssm_beta" in name:
        return Kind.F32
    others = {"attn_v": Kind.Q8_0, "attn_qkv": Kind.Q5_1, "down": Kind.Q8_0}
    others |= {"token_embd": Kind.Q8_0, "ssm_ba": Kind.BF16}
    return next((kind for part, kind in others.items() if part in name), Kind.Q4_1)


def read_oracle(path: Path) -> PreTrainedModel:
    """Return transformers' model with the numbers of a file."""
    config = AutoConfig.from_pretrained(resolve_description(str(path)).folder)
    oracle: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32
    )
    oracle.load_state_dict(read_tensors(read_gguf(path), oracle, torch.float32))
    return oracle.eval()


@pytest.mark.parametrize("family", MODELS)
def test_the_blocks_of_a_file_compute_what_its_numbers_compute(
    family: str, tmp_path: Path
) -> None:
    model = make_model(family)
    kinds = mix_oss if family == "gpt-oss" else mix
    path = write_gguf(tmp_path / "tiny.gguf", family, model, kinds=kinds)
    assert compare(load(path), read_oracle(path)) < FINE_ROUNDING
    # The usual type, in which routers of tiny models choose other experts.
    load(path, dtype="bfloat16")


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
    assert compare(loaded, oracle) < FINE_ROUNDING
    # No weight of a product is read into memory.
    matrices = [each for each in loaded.model.parameters() if each.dim() == 2]
    assert {each.untyped_storage().nbytes() for each in matrices} == {4}
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert compare(load(path, dtype="auto", quantization="int8"), oracle) < ROUNDING


@torch.inference_mode()
def test_adapters_change_the_products_of_a_file(tmp_path: Path) -> None:
    """Also where llama.cpp has another order of their outputs, and of their inputs."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    sizes |= {"linear_value_head_dim": 32, "linear_num_value_heads": 8}
    model = make_model("qwen35", **sizes)
    path = write_gguf(tmp_path / "tiny.gguf", "qwen35", model, kinds=mix_k)
    loaded, oracle = load(path), read_oracle(path)
    assert loaded.native is not None, "the kernels run it"
    tables, inputs = make_check(loaded.info.vocab_size)
    layers = loaded.native.open(tables, num_blocks=tables.block_ids.shape[1])
    chance = torch.Generator().manual_seed(0)
    changes = {}
    for name, (num_outputs, num_inputs) in layers.adapters.shapes.items():
        product = oracle.get_submodule(name)
        vectors = torch.randn(3, num_inputs, generator=chance)
        actual = vectors @ layers.adapters.read(name).T
        # The scales of blocks are rounded to 16 bits.
        assert measure_distance(vectors @ product.weight.T, actual) < FINE_ROUNDING
        a = torch.randn(5, num_inputs, generator=chance) / num_inputs**0.5
        b = torch.randn(num_outputs, 5, generator=chance) * 0.1
        changes[name] = LowRank(a=a, b=b)
        product.weight = torch.nn.Parameter(product.weight + b @ a)
    layers.adapters.add(1, layers.adapters.pack(changes))
    vectors = loaded.model.get_input_embeddings()(inputs.input_ids)[0]

    def measure(adapter: int) -> float:
        step = replace(inputs, adapters=(adapter,))
        actual = layers.run(vectors, step, COMPARED_TOKENS, inputs.position_ids)
        return measure_distance(logits[COMPARED_TOKENS], actual)

    logits = oracle(input_ids=inputs.input_ids, use_cache=False).logits[0]
    assert measure(1) < ROUNDING < measure(0)
