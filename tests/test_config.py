"""One field is one flag, one key and one row of README's table."""

from __future__ import annotations

from dataclasses import Field, is_dataclass
from pathlib import Path
import re
from typing import Any, get_type_hints

import docstring_parser
import pytest

from trioserve import __main__ as command
from trioserve.config import (
    EngineConfig,
    ServeConfig,
    build_config,
    list_options,
    parse_bytes,
)
from trioserve.errors import InvalidConfig

ROOT = Path(__file__).parent.parent
OPTIONS = list(list_options(ServeConfig))


def read_rows() -> dict[str, tuple[str, str]]:
    """Return README's rows: flag -> (default, meaning)."""
    text = (ROOT / "README.rst").read_text()
    row = re.compile(
        r"   \* - ``--([a-z0-9-]+)``\n     - (.+)\n     - ((?:.+\n)(?:       .+\n)*)"
    )
    return {
        flag: (default.strip("`"), " ".join(meaning.split()))
        for flag, default, meaning in row.findall(text)
    }


def read_meanings(config_type: type = ServeConfig) -> dict[str, str]:
    """Return what the docstrings of a configuration's classes say of each field."""
    found = {
        param.arg_name: " ".join((param.description or "").split())
        for param in docstring_parser.parse(config_type.__doc__ or "").params
    }
    for hint in get_type_hints(config_type).values():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            found |= read_meanings(hint)
    return found


def test_every_field_has_a_row_with_its_default_and_meaning() -> None:
    meanings = read_meanings()
    expected = {
        option.name.replace("_", "-"): (
            "worked out" if option.default is None else str(option.default),
            meanings[option.name],
        )
        for option in OPTIONS
    }
    assert read_rows() == expected


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_field_has_a_flag(
    option: Field[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.parse_serve(["--help"])
    assert caught.value.code == 0
    assert f"--{option.name.replace('_', '-')}" in capsys.readouterr().out


def test_names_of_options_are_unique() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('port = 9000\nmax_num_seqs = 7\nmodel = "from-file"\n')
    config = command.parse_serve(["MODEL", "--config", str(path), "--port", "0"])
    assert config.engine.model.model == "MODEL"
    assert config.bind.port == 0
    assert config.engine.scheduler.max_num_seqs == 7
    assert command.parse_serve([]) == ServeConfig()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense = 1", "--nonsense: there is no such option"),
        ('port = "high"', "--port: Expected `int`"),
        ("port = 70000", "--port: must be between 0 and 65535"),
        ("port = ", "--config: cannot read"),
    ],
)
def test_a_wrong_file_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    message: str,
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(content)
    assert command.main(["serve", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trioserve: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "70000"],
        ["--max-num-seqs", "0"],
        ["--kv-cache-memory", "lots"],
        ["--max-num-batched-tokens", "4"],
        ["--max-step-seconds", "0"],
        ["--max-step-seconds", "nan"],
        ["--scheduling-policy", "lottery"],
    ],
)
def test_a_senseless_flag_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    try:
        code = command.main(["serve", *flags])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert flags[0] in error
    assert "Traceback" not in error


def test_unknown_commands_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    assert "usage: trioserve serve" in capsys.readouterr().err


def test_engine_options_exclude_those_of_the_socket() -> None:
    with pytest.raises(InvalidConfig, match="--port"):
        build_config(EngineConfig, {"port": 1})


def test_one_device_is_not_for_several_stages() -> None:
    options = {"device": "cuda:0", "pipeline_parallel_size": 2}
    with pytest.raises(InvalidConfig, match="--device: cuda:0 is one device"):
        build_config(EngineConfig, options)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2GiB", 2**31), ("512M", 2**29), ("1.5k", 1536), ("4 MiB", 2**22)],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes("kv_cache_memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1e400", "nan", "2 PiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--kv-cache-memory"):
        parse_bytes("kv_cache_memory", text)
