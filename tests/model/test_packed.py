"""GGUF files run as they are, and compute what transformers computes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import logging
from pathlib import Path
import subprocess
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Kind
from gguf_families import quantise
import numpy as np
from numpy.typing import NDArray
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from warm_start import FORK

from trioserve.config import ModelConfig
from trioserve.kernels.library import open_library
from trioserve.model.loading.packed import load_packed
from trioserve.model.loading.plain.llama import load_plain
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check.compare import measure_distance
from trioserve.model.self_check.steps import COMPARED_TOKENS, make_check
from trioserve.testing.models import TINY_MODELS, save_tiny_model
from trioserve.types.gguf import GgufFile
from trioserve.weights import read_gguf, resolve_description

from .planning import compute_on_kernels

# With inputs of 8 bits, and with bfloat16. They give 0.001 to 0.03 for models as small as
# these. A wrong formula gives 0.1 or more.
ROUNDING = 0.05

# With inputs of 16 bits. They give 0.00004 to 0.0002, and a K block's two scales, whose
# product the kernels keep as float16, as much as this.
FINE_ROUNDING = 1e-3

Numbers = NDArray[np.float32]

# transformers' type of a model -> llama.cpp's architecture, and its own changes of sizes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("llama", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    # transformers does not read its head size from a file.
    "qwen3": ("qwen3", {"head_dim": 128}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True}),
    "gemma3_text": ("gemma3", {"num_hidden_layers": 6, "layer_types": None}),
    "phi3": ("phi3", {"sliding_window": None}),
}


pytestmark = pytest.mark.usefixtures("needs_kernels", "own_cache")


def make_model(model_type: str, **changes: Any) -> PreTrainedModel:
    fields = TINY_MODELS[model_type] | MODELS[model_type][1] | changes
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **fields)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    # Norms of ones would hide a missing or a wrong weight.
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.0 if "bias" in name else 1.0, 0.1)
    return model


def write_gguf(
    path: Path, model: PreTrainedModel, kinds: dict[str, Kind], default: Kind
) -> Path:
    """Write a model as llama.cpp's convert_hf_to_gguf.py does.

    Args:
      kinds: beginnings of the names of tensors, and their types.
      default: type of the other matrices; all vectors are F32.
    """
    config: Any = model.config
    architecture = MODELS[config.model_type][0]
    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, config)
    add_tokenizer(writer, config.vocab_size)
    codes = {name: code for code, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(codes[architecture], config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        base, dot, suffix = name.rpartition(".")
        short = f"{table.get_name(base)}{dot}{suffix}"
        numbers = change(config, short, parameter.detach().numpy())
        kind = Kind.F32 if numbers.ndim == 1 else default
        for beginning, choice in kinds.items():
            kind = choice if short.startswith(beginning) else kind
        writer.add_tensor(short, quantise(numbers, kind), raw_dtype=kind)
    if (config.rope_parameters or {}).get("rope_type") == "llama3":
        rotary: Any = model.model.rotary_emb
        plain = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_name("Tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    head_dim = getattr(config, "head_dim", None) or 8
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    tokens = ["a", "b", "ab", *(f"<{i}>" for i in range(3, vocab_size))]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab_size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 3)


def change(config: Any, name: str, numbers: Numbers) -> Numbers:
    """Change a tensor as llama.cpp's conversion does."""
    if config.model_type.startswith("gemma") and "norm" in name:
        return numbers + 1
    if MODELS[config.model_type][0] == "llama" and ("_q." in name or "_k." in name):
        count = config.num_attention_heads
        count = count if "_q." in name else config.num_key_value_heads
        parts = numbers.reshape(count, 2, -1, *numbers.shape[1:])
        return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(numbers.shape))
    return numbers


def load(path: Path, **options: Any) -> LoadedModel:
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu", **{"dtype": "float32", **options})
    loaded = load_packed(folder, read_gguf(path), config, name="tiny")
    assert loaded is not None, "kernels can run it"
    return loaded


@torch.inference_mode()
def compare(loaded: LoadedModel, oracle: PreTrainedModel) -> float:
    actual = compute_on_kernels(loaded)
    _, inputs = make_check(loaded.info.vocab_size)
    expected: Any = oracle(input_ids=inputs.input_ids, use_cache=False)
    return measure_distance(expected.logits[0][COMPARED_TOKENS], actual)


@pytest.fixture
def plain_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", make_model("llama"), {}, Kind.F32)


def read_oracle(path: Path) -> PreTrainedModel:
    oracle: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return oracle


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [each for each in MODELS if each != "mistral"])
def test_quantised_weights_are_those_of_the_file(
    tmp_path: Path, model_type: str
) -> None:
    path = tmp_path / "tiny.gguf"
    kinds = {"token_embd": Kind.Q8_0, "blk.0.ffn_down": Kind.Q8_0}
    model = make_model(model_type, initializer_range=0.2)
    write_gguf(path, model, kinds, Kind.Q4_1)
    assert compare(load(path), read_oracle(path)) < FINE_ROUNDING


@pytest.mark.slow
def test_each_type_of_blocks_runs(tmp_path: Path) -> None:
    """Each product has one, because weights of one product decide its format together."""
    path = tmp_path / "tiny.gguf"
    sizes = {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.1}
    sizes["num_hidden_layers"] = 3
    kinds = {
        **dict.fromkeys(("blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"), Kind.Q4_K),
        **dict.fromkeys(("blk.1.attn_q", "blk.1.attn_k", "blk.1.attn_v"), Kind.Q5_1),
        **dict.fromkeys(("blk.0.ffn_gate", "blk.0.ffn_up"), Kind.Q4_0),
        **dict.fromkeys(("blk.1.ffn_gate", "blk.1.ffn_up"), Kind.BF16),
        **{"blk.0.attn_output": Kind.Q5_0, "blk.1.attn_output": Kind.F16},
        **{"blk.0.ffn_down": Kind.Q6_K, "blk.1.ffn_down": Kind.Q5_K},
        **{"blk.2.attn_q": Kind.Q2_K, "blk.2.attn_output": Kind.Q3_K},
        **dict.fromkeys(("blk.2.ffn_gate", "blk.2.ffn_up"), Kind.IQ4_XS),
        **{"blk.2.ffn_down": Kind.IQ4_NL, "blk.2.attn_v": Kind.MXFP4},
    }
    write_gguf(path, make_model("llama", **sizes), kinds, Kind.Q8_0)
    oracle = read_oracle(path)
    assert compare(load(path), oracle) < FINE_ROUNDING
    assert compare(load(path, quantization="int8"), oracle) < ROUNDING


def make_llama_3() -> PreTrainedModel:
    """Make a Llama whose rotary angles are scaled by factors in its GGUF file."""
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 16}
    return make_model("llama", rope_parameters=rope)


@pytest.mark.slow
def test_the_rotary_angles_of_llama_3_are_those_of_the_file(tmp_path: Path) -> None:
    model = make_llama_3()
    path = write_gguf(tmp_path / "tiny.gguf", model, {}, Kind.F32)
    assert compare(load(path), model) < 1e-5
    # transformers ignores the tensor.
    assert compare(load(path), read_oracle(path)) > 1e-3


def test_no_weight_of_a_product_is_read_into_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = write_gguf(tmp_path / "t.gguf", make_model("llama"), {}, Kind.Q8_0)
    loaded = load(path, dtype="auto", num_threads=1)
    assert "weights: Q8_0, read from t.gguf" in caplog.messages
    assert loaded.info.dtype == "bfloat16"
    assert loaded.info.kernels == f"native {open_library().name}"
    assert loaded.info.eos_token_ids == {2, 3}
    matrices = [each for each in loaded.model.parameters() if each.dim() == 2]
    assert {each.untyped_storage().nbytes() for each in matrices} == {2}
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_weights_with_which_nothing_is_a_number_are_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = make_model("llama")
    with torch.no_grad():
        model.get_decoder().norm.weight[3] = torch.inf
    path = write_gguf(tmp_path / "t.gguf", model, {}, Kind.Q8_0)
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu")
    assert load_packed(folder, read_gguf(path), config, name="tiny") is None
    assert "because its logits would not be finite" in caplog.text


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("TQ1_0", {}, "has the type TQ1_0"),
        ("F16", {"dtype": "float16"}, "kernels for torch.float16 are missing"),
    ],
)
def test_a_file_that_cannot_run_as_it_is_is_left_to_be_converted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    options: dict[str, str],
    reason: str,
) -> None:
    caplog.set_level(logging.INFO)
    model = make_model("llama", hidden_size=256, intermediate_size=256)
    path = write_gguf(
        tmp_path / "t.gguf", model, {"blk.1.attn_v": Kind[kind]}, Kind.F16
    )
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu", **{"dtype": "float32", **options})  # type: ignore
    assert load_packed(folder, read_gguf(path), config, name="tiny") is None
    assert "weights: not from t.gguf itself, because" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("model_type", "changes", "default", "rounding"),
    [
        ("llama", {"tie_word_embeddings": False}, Kind.F32, 1e-5),
        ("llama", {"tie_word_embeddings": True}, Kind.Q8_0, FINE_ROUNDING),
        ("mistral", {}, Kind.Q4_1, FINE_ROUNDING),
    ],
)
def test_a_plain_llama_has_the_logits_of_transformers(
    tmp_path: Path,
    model_type: str,
    changes: dict[str, Any],
    default: Kind,
    rounding: float,
) -> None:
    model = make_model(model_type, initializer_range=0.2, **changes)
    path = write_gguf(tmp_path / "tiny.gguf", model, {}, default)
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu", dtype="float32")
    loaded = load_plain(folder, config, name="tiny", file=read_gguf(path))
    other = load(path)
    assert loaded is not None
    assert (loaded.info, loaded.layers) == (other.info, other.layers)
    assert compare(loaded, read_oracle(path)) < rounding


def rename_architecture(file: GgufFile) -> GgufFile:
    return replace(file, architecture="other")


def change_kind(file: GgufFile) -> GgufFile:
    """Give one matrix a kind that the kernels cannot pack."""
    first, *others = file.tensors
    return replace(file, tensors=(replace(first, kind="TQ1_0"), *others))


@pytest.mark.parametrize("spoil", [rename_architecture, change_kind])
def test_a_file_of_another_kind_is_not_a_plain_llama(
    plain_file: Path, spoil: Callable[[GgufFile], GgufFile]
) -> None:
    folder = resolve_description(str(plain_file)).folder
    config = ModelConfig(device="cpu", dtype="float32")
    file = read_gguf(plain_file)
    assert load_plain(folder, config, name="tiny", file=file) is not None
    assert load_plain(folder, config, name="tiny", file=spoil(file)) is None


def test_a_file_with_other_tensors_is_not_a_plain_llama(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_llama_3(), {}, Kind.F32)
    folder = resolve_description(str(path)).folder
    config = ModelConfig(device="cpu", dtype="float32")
    assert load_plain(folder, config, name="tiny", file=read_gguf(path)) is None


def test_a_plain_llama_starts_without_transformers(
    plain_file: Path, tmp_path: Path
) -> None:
    """To import its models takes longer than the rest of a start.

    The process forgets what others have imported in the helper that it is a fork of.
    """
    resolve_description(str(plain_file))
    folder = save_tiny_model("llama", tmp_path / "folder")
    script = (
        "import sys\n"
        "large = ('transformers', 'scipy', 'sklearn', 'torch._dynamo', 'sympy',\n"
        "    'llguidance', 'prometheus_client')\n"
        "for name in [*sys.modules]:\n"
        "    if f'{name}.'.startswith(('trioserve.', *(f'{each}.' for each in large))):\n"
        "        del sys.modules[name]\n"
        "import trioserve.startup.engine_host, trioserve.model.stages.plain\n"
        "from trioserve.config import EngineConfig, build_config\n"
        "from trioserve.startup.core import build_core\n"
        "for model in sys.argv[1:]:\n"
        "    values = {'model': model, 'kv_cache_memory': '16MiB'}\n"
        "    core = build_core(build_config(EngineConfig, values), 'all', None)\n"
        "    assert core.info.kernels.startswith('native')\n"
        "print([name for name in large if name in sys.modules])"
    )
    loaded = subprocess.run(
        [*FORK, "-c", script, str(plain_file), str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "[]"
