"""One field is one flag, one key and one row of a table in docs/options.rst."""

from __future__ import annotations

from dataclasses import Field, is_dataclass
from pathlib import Path
import re
import socket
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
    """Return the rows of docs/options.rst: flag -> (default, meaning)."""
    text = (ROOT / "docs" / "options.rst").read_text()
    row = re.compile(
        r"   \* - ``--([a-z0-9-]+)``\n     - (.+)\n     - ((?:.+\n)(?:       .+\n)*)"
    )
    return {
        flag: (default.strip("`"), " ".join(meaning.split()))
        for flag, default, meaning in row.findall(text)
    }


def read_lines(config_type: type = ServeConfig) -> dict[str, list[str]]:
    """Return the docstrings' lines about each field."""
    found = {
        param.arg_name: (param.description or "").splitlines()
        for param in docstring_parser.parse(config_type.__doc__ or "").params
    }
    for hint in get_type_hints(config_type).values():
        if is_dataclass(hint):
            assert isinstance(hint, type)
            found |= read_lines(hint)
    return found


def read_meanings() -> dict[str, str]:
    """Return what the docstrings of the configuration's classes say of each field."""
    return {
        name: " ".join(" ".join(lines).split()) for name, lines in read_lines().items()
    }


def test_every_field_has_a_row_with_its_default_and_meaning() -> None:
    meanings = read_meanings()
    expected = {
        option.name.replace("_", "-"): (
            "not set" if option.default is None else str(option.default),
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


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_no_line_of_a_meaning_begins_with_a_number(option: Field[Any]) -> None:
    # --help would take it for an item of a list, and break the line before it.
    lines = read_lines()[option.name]
    assert not [line for line in lines if line[0].isdigit()]


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
        ("nonsense = 1", "--nonsense: there is no such option here"),
        ('port = "high"', "--port: Expected `int`, got `str`"),
        ("port = 70000", "--port: must be between 0 and 65535"),
        ("tensor_parallel_size = 2", "--tensor-parallel-size: no layer"),
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
    assert error.startswith(f"trioserve: --config: {path}: {message}")
    assert error.count("\n") == 1


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = ")
    with pytest.raises(InvalidConfig, match=f"--config: cannot read {path}: Invalid"):
        command.parse_serve(["--config", str(path)])


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    with pytest.raises(InvalidConfig) as caught:
        command.parse_serve(["--config", str(path)])
    reason = "No such file or directory"
    assert str(caught.value) == f"--config: cannot read {path}: {reason}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0", "./model"], "write MODEL before all options; './model' is"),
        (["first", "second"], "write MODEL before all options; 'second' is"),
        (["--enable-h2c", "true"], "write MODEL before all options; 'true' is"),
        (["first", "--model", "second"], "name one model: as MODEL or by --model"),
        (["first", "--model=second"], "name one model: as MODEL or by --model"),
    ],
)
def test_a_model_out_of_place_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert command.main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trioserve: --model: {message}")
    assert error.count("\n") == 1


def test_an_unknown_flag_is_named_besides_a_word_out_of_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["serve", "--nonsense", "1"])
    assert caught.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        # An address of TEST-NET-1: no machine has it.
        ("192.0.2.1", "Cannot assign requested address"),
        ("ä" * 64, "it is not the name of a host"),
    ],
)
def test_a_host_that_cannot_be_taken_is_named(
    capsys: pytest.CaptureFixture[str], host: str, reason: str
) -> None:
    assert command.main(["serve", "--host", host]) == 2
    error = capsys.readouterr().err
    assert error == f"trioserve: --host: cannot listen on {host}: {reason}\n"


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    address = f"127.0.0.1:{port}"
    assert (
        error == f"trioserve: --port: cannot take {address}: Address already in use\n"
    )


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
    assert capsys.readouterr().err.startswith("usage: trioserve serve")
    assert command.main(["server", "MODEL"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trioserve: 'server' is not a command\nusage: ")


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
