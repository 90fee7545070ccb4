"""Options of other servers are refused with advice."""

from __future__ import annotations

from collections.abc import Sequence
import inspect
from pathlib import Path
import re

import pytest

from trioserve import __main__ as command
from trioserve.config import EngineConfig, ServeConfig, build_config, list_options
from trioserve.config.foreign import explain_foreign, list_foreign
from trioserve.errors import ForeignOption

OPTIONS = list(list_options(ServeConfig))
OURS = {option.name.replace("_", "-") for option in OPTIONS}
SWITCHES = {
    "no-" + option.name.replace("_", "-")
    for option in OPTIONS
    if isinstance(option.default, bool)
}

# The options of vLLM that are the most frequent in recipes and questions on the web.
MOST_USED = """
    gpu-memory-utilization enable-prefix-caching
    enable-auto-tool-choice trust-remote-code uvicorn-log-level
    swap-space enforce-eager enable-chunked-prefill limit-mm-per-prompt tokenizer revision
    download-dir load-format disable-log-requests max-log-len ssl-keyfile ssl-certfile
    enable-lora lora-modules data-parallel-size distributed-executor-backend
    speculative-config seed hf-token tokenizer-mode cpu-offload-gb
    max-seq-len-to-capture compilation-config disable-log-stats model-impl
    chat-template-content-format response-role enable-reasoning
    guided-decoding-backend mm-processor-cache-gb kv-cache-memory-bytes runner
""".split()


def run(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> tuple[int, str]:
    code = command.main(["serve", *arguments])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (
            ["--gpu-memory-utilization", "0.9"],
            "write --kv-cache-fraction for --gpu-memory-utilization",
        ),
        (
            ["MODEL", "--gpu_memory_utilization=0.9"],
            "write --kv-cache-fraction for --gpu-memory-utilization",
        ),
        (
            ["-tp", "2", "--port", "1", "--ctx-size", "10", "-tp", "2"],
            "write --tensor-parallel-size for -tp; write --max-model-len for --ctx-size",
        ),
        (
            ["-hf", "org/name"],
            "-hf: a hub id is a folder with safetensors, and a .gguf file is named by "
            "its path",
        ),
        (
            ["--compilation-config.level", "3"],
            "--compilation-config: --no-cuda-graphs captures none, and there is no "
            "torch.compile",
        ),
    ],
)
def test_a_flag_of_another_server_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert run(capsys, arguments) == (2, f"trioserve: {expected}\n")


def test_a_key_of_another_server_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("enable_auto_tool_choice = true\nport = 1\n")
    assert run(capsys, ["--config", str(path)]) == (
        2,
        f"trioserve: --config: {path}: --enable-auto-tool-choice: --tool-call-parser "
        "alone is enough\n",
    )


def test_a_keyword_of_another_server_is_explained() -> None:
    with pytest.raises(ForeignOption, match="write --kv-cache-fraction for"):
        build_config(EngineConfig, {"gpu_memory_utilization": 0.9})


def test_another_servers_name_of_a_value_is_answered_with_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, ["--kv-cache-dtype", "int8_per_token_head"]) == (
        2,
        "trioserve: --kv-cache-dtype: 'int8_per_token_head' is not one of auto, int8; "
        "write int8\n",
    )
    code, printed = run(capsys, ["--kv-cache-dtype", "fp8"])
    assert code == 2 and printed.endswith("'fp8' is not one of auto, int8\n")


@pytest.mark.parametrize("name", MOST_USED)
def test_the_most_used_options_of_vllm_are_known(name: str) -> None:
    assert name in list_foreign()


def test_advised_options_exist_and_none_of_ours_is_refused() -> None:
    assert not list_foreign() & (OURS | SWITCHES)
    for name in list_foreign():
        explanation = explain_foreign([f"--{name}"])
        assert name in explanation
        # Several explanations are joined on one line, with semicolons.
        assert not re.search(r"[;\n]", explanation)
        advised = re.findall(r"--([a-z0-9-]+)", explanation)
        assert set(advised) - {name} <= OURS | SWITCHES


def test_none_is_in_the_table_twice() -> None:
    import trioserve.config.foreign as table

    keys = re.findall(r'^    "([a-z0-9-]+)": ', inspect.getsource(table), re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(list_foreign())


def test_an_option_that_no_server_has_is_not_explained() -> None:
    assert explain_foreign(["--nonsense", "--port", "-x", ""]) == ""
