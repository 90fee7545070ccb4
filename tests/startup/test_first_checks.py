"""Wrong devices, types and lengths are refused before torch and transformers are imported."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys

import gguf
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from trioserve.config import EngineConfig, build_config
from trioserve.errors import InvalidConfig, StartupError
from trioserve.startup.first_checks import (
    check_description,
    check_first,
    find_obstacle,
    may_know,
)

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def describe(folder: Path, **fields: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_serve_refuses_in_a_sentence_and_imports_nothing_for_it(tmp_path: Path) -> None:
    """Neither weights nor a tokenizer are there, and nobody misses them."""
    unknown = str(describe(tmp_path / "a", model_type="nonsense"))
    short = str(describe(tmp_path / "b", **LLAMA, max_position_embeddings=8192))
    gone = str(tmp_path / "c")
    file = tmp_path / "d.gguf"
    save_gguf(file, "llama")
    commands = [
        [unknown],
        [short, "--max-model-len", "100k"],
        [gone],
        [str(file), "--max-model-len", "100k"],
        [short, "--device", "cpu", "--quantization", "fp8"],
    ]
    program = (
        "import sys; from trioserve.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    assert main(['serve', *command, '--port', '0']) == 2\n"
        "assert not {'torch', 'transformers', 'quart'} & {*sys.modules}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    first, *others = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert first.startswith("trioserve: the architecture nonsense is not supported: ")
    assert first.endswith(" does not know this model_type")
    too_long = "trioserve: --max-model-len: 100000 is more than the model's own 8192"
    assert others == [
        too_long,
        f"trioserve: cannot find the model {gone!r}: there is no such file or folder",
        too_long,
        "trioserve: --quantization: fp8 is for GPUs, and the device is cpu; int8 runs there",
    ]


def save_gguf(path: Path, architecture: str, scaling: str = "none") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(8192)
    writer.add_string(f"{architecture}.rope.scaling.type", scaling)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def test_no_type_of_transformers_is_refused() -> None:
    assert [each for each in CONFIG_MAPPING_NAMES if not may_know(each)] == []
    assert not may_know("nonsense")


@pytest.mark.parametrize(
    ("architecture", "scaling", "reason"),
    [
        ("llama", "none", "100000 is more than the model's own 8192"),
        ("llama", "yarn", None),
        *((each, "yarn", None) for each in ("qwen3moe", "gpt-oss", "granitehybrid")),
        ("nonsense", "yarn", "nonsense is not supported: .* cannot read its GGUF"),
    ],
)
def test_a_gguf_file_is_refused_by_its_header(
    tmp_path: Path, architecture: str, scaling: str, reason: str | None
) -> None:
    path = save_gguf(tmp_path / "m.gguf", architecture, scaling)
    config = build_config(EngineConfig, {"model": str(path), "max_model_len": 100_000})
    if reason is None:
        return check_first(config)
    with pytest.raises(StartupError, match=reason):
        check_first(config)


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({}, True),
        ({"rope_scaling": {"rope_type": "default"}}, True),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, False),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, False),
        # A length for each kind of layer.
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, True),
        ({"max_position_embeddings": -1}, False),
        ({"text_config": {"max_position_embeddings": 2000}}, False),
        ({"max_position_embeddings": 2000, "text_config": LLAMA}, False),
        ({"text_config": {"max_position_embeddings": 500}}, True),
        # Its positions do not begin at 0; encoder/loading.py counts them.
        ({"architectures": ["RobertaModel"]}, False),
    ],
)
def test_a_length_is_refused_only_if_it_is_certain(
    tmp_path: Path, fields: dict[str, object], is_refused: bool
) -> None:
    describe(tmp_path, **{**LLAMA, "max_position_embeddings": 1000, **fields})
    config = build_config(EngineConfig, {"model": str(tmp_path), "max_model_len": 1001})
    if not is_refused:
        return check_description(tmp_path, config)
    with pytest.raises(InvalidConfig, match="1001 is more than the model's own"):
        check_description(tmp_path, config)


@pytest.mark.parametrize("text", ["", "[]", '{"architectures": {}}', '{"a": NaN'])
def test_a_broken_file_is_left_to_its_reader(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    check_description(tmp_path, build_config(EngineConfig, {"model": str(tmp_path)}))


@pytest.mark.parametrize(
    ("build", "obstacle"),
    [
        ("cuda = None; hip = None", "torch is installed without CUDA"),
        ("cuda = '13.0'; hip = None", "no driver of NVIDIA (libnone.so.1)"),
        ("cuda = None; hip = '7.1'", None),
    ],
)
def test_torch_and_the_driver_tell_whether_there_is_a_gpu(
    tmp_path: Path, build: str, obstacle: str | None
) -> None:
    (tmp_path / "version.py").write_text(build)
    found = find_obstacle(tmp_path, "libnone.so.1")
    assert found == obstacle or (found and obstacle and obstacle in found)
    assert find_obstacle(tmp_path / "nowhere") is None
