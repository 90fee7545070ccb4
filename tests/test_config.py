"""One field is one flag, one key and one row of a table in docs/options.rst."""

from __future__ import annotations

from contextlib import redirect_stdout
import io
import os
from pathlib import Path
import re
import socket
import subprocess
import sys

import pytest

from trioserve import __main__ as command
from trioserve.config import (
    EngineConfig,
    ModelConfig,
    Option,
    ServeConfig,
    build_config,
    list_changes,
    list_options,
    parse_bytes,
)
from trioserve.config.keywords import naming_keywords
from trioserve.errors import ForeignOption, InvalidConfig, StartupError
from trioserve.programs.commands.serve import parse_serve

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


def test_an_option_has_a_row_with_its_default_and_meaning() -> None:
    assert read_rows() == {
        option.flag.removeprefix("--"): (
            "not set" if option.default is None else str(option.default),
            option.meaning,
        )
        for option in OPTIONS
    }


def test_an_option_has_a_short_line() -> None:
    for option in OPTIONS:
        # This fits into two lines of --help on a terminal of 80 columns.
        assert 0 < len(option.summary) <= 76, option.name
        assert option.meaning.endswith("."), option.name


def read_help(*arguments: str) -> str:
    """Return the output of `trioserve serve --help`."""
    output = io.StringIO()
    with redirect_stdout(output), pytest.raises(SystemExit) as caught:
        parse_serve(arguments)
    assert caught.value.code == 0
    return output.getvalue()


def test_help_has_a_line_for_each_option() -> None:
    shown = re.findall(r"^  --(?:\[no-\])?([a-z0-9-]+)", read_help("--help"), re.M)
    assert [f"--{name}" for name in shown] == [each.flag for each in OPTIONS]


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, read_help("--help").splitlines())) <= columns


def test_help_with_a_word_explains_the_options_that_contain_it() -> None:
    text = read_help("--help=max-num")
    assert re.findall(r"^  (--\S+)", text, re.M) == [
        *("--max-num-seqs", "--max-num-batched-tokens")
    ]
    assert "longer prompts are cut into chunks" in " ".join(text.split())


def test_help_with_the_word_all_explains_every_option() -> None:
    text = " ".join(read_help("--help=all").split())
    assert [option.name for option in OPTIONS if option.meaning not in text] == []


def test_help_wins_over_a_mistake_beside_it() -> None:
    assert read_help("--nonsense", "--help").startswith("usage: ")


def test_a_reader_may_close_help_before_its_end() -> None:
    """`trioserve serve --help | head -1` does so."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "trioserve", "serve", "--help"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_of_options_are_unique() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('port = 9000\nmax_num_seqs = 7\nmodel = "from-file"\n')
    config = parse_serve(["MODEL", "--config", str(path), "--port", "0"])
    assert config.engine.model.model == "MODEL"
    assert config.bind.port == 0
    assert config.engine.scheduler.max_num_seqs == 7
    assert parse_serve([]) == ServeConfig()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense = 1", "--nonsense: there is no such option here"),
        ('port = "high"', "--port: 'high' is not a whole number"),
        ("port = 70000", "--port: must be between 0 and 65535, got 70000"),
        ("max-num-seqs = 1", "--max-num-seqs: write max_num_seqs, with underscores"),
        ("[server]\nport = 1", "[server] is a table; write options without tables"),
        ("data_parallel_size = 2", "--data-parallel-size: one server runs one model"),
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
        parse_serve(["--config", str(path)])


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    with pytest.raises(InvalidConfig) as caught:
        parse_serve(["--config", str(path)])
    reason = "No such file or directory"
    assert str(caught.value) == f"--config: cannot read {path}: {reason}"


@pytest.mark.parametrize(
    "arguments",
    [["MODEL", "--port", "8001"], ["--port", "8001", "MODEL"]]
    + [
        ["--enable-h2c", "MODEL", "--port=8001"],
        ["--port", "8001", "--model", "MODEL"],
    ],
)
def test_model_may_stand_anywhere(arguments: list[str]) -> None:
    config = parse_serve(arguments)
    assert config.engine.model.model == "MODEL"
    assert config.bind.port == 8001


def test_a_flag_may_have_underscores() -> None:
    assert parse_serve(["--max_num_seqs=7"]).engine.scheduler.max_num_seqs == 7


def test_the_last_of_repeated_flags_wins() -> None:
    flag = "--logits-processor"
    config = parse_serve([flag, "a:A", "b:B", "--port", "1", flag, "c:C"])
    assert config.engine.model.logits_processor == ("c:C",)
    assert parse_serve(["--port", "1", "--port=2"]).bind.port == 2


def test_adapters_add_up_and_wrong_ones_are_refused() -> None:
    flags = ["--adapter", "a=x", "o/b=/y=z", "--port", "1", "--adapter=c=~/w"]
    model = parse_serve(flags).engine.model
    assert model.list_adapters() == [
        ("a", str(Path("x").absolute())),
        ("o/b", "/y=z"),
        ("c", str(Path.home() / "w")),
    ]
    wrong = {
        ("a",): "'a' is not NAME=PATH",
        ("a=",): "'a=' is not NAME=PATH",
        ("=x",): "a name has 1 to 128 characters",
        ("../a=x",): "between the slashes",
        ("a=x", "a=y"): "the name 'a' comes twice",
        ("served=x",): "'served' is a name of the model",
        ("a=1", "b=2", "c=3"): "3 are more than --max-adapters 2",
    }
    for adapters, message in wrong.items():
        with pytest.raises(InvalidConfig, match=f"^--adapter: .*{message}"):
            ModelConfig(adapter=adapters, served_model_name=("served",), max_adapters=2)


def test_a_list_goes_on_behind_an_equals_sign() -> None:
    config = parse_serve(["--logits-processor=a:A", "b:B", "--port", "1"])
    assert config.engine.model.logits_processor == ("a:A", "b:B")
    assert config.engine.model.model == ServeConfig().engine.model.model


@pytest.mark.parametrize(
    ("text", "port"), [("080", 80), ("+5", 5), ("4_096", 4096), (" 7", 7)]
)
def test_python_reads_whole_numbers(text: str, port: int) -> None:
    assert parse_serve(["--port", text]).bind.port == port


@pytest.mark.parametrize(
    ("text", "seconds"), [(".5", 0.5), ("1.", 1.0), ("007", 7.0), ("1e1", 10.0)]
)
def test_python_reads_other_numbers(text: str, seconds: float) -> None:
    assert parse_serve(["--drain-timeout", text]).http.drain_timeout == seconds


@pytest.mark.parametrize(
    ("text", "number"), [("4k", 4000), ("4K", 4096), ("1m", 10**6), ("2M", 2**21)]
)
def test_whole_numbers_may_be_thousands(text: str, number: int) -> None:
    config = parse_serve(["--max-model-len", text])
    assert config.engine.model.max_model_len == number


@pytest.mark.parametrize(
    "flag", ["--served-model-name", "--max-model-len", "--max-step-seconds"]
)
@pytest.mark.parametrize("text", ["None", "none"])
def test_the_value_none_unsets_an_option_of_the_file(
    tmp_path: Path, flag: str, text: str
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'served_model_name = "none"\nmax_model_len = 9\nmax_step_seconds = 1\n'
    )
    config = parse_serve(["--config", str(path), flag, text])
    name = flag[2:].replace("-", "_")
    changed = {option.name: value for option, value in list_changes(config)}
    # The file has no word for "not set", so its "none" is a name.
    expected = {
        "served_model_name": ("none",),
        "max_model_len": 9,
        "max_step_seconds": 1.0,
    }
    del expected[name]
    assert changed == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["first", "second", "--model=x"],
            "--model: name one model; here are first and second and x",
        ),
        (["one", "--preload"], "--preload: is for several models; there is one"),
        (
            [
                "one",
                "two",
                "--api-processes=2",
                "--response-max-age=0",
                "--max-background-responses=0",
            ],
            "--api-processes: is only possible with",
        ),
        (["one", "two", "--no-engine-process"], "--engine-process: is on with several"),
        (["./one", "/b/one"], "--model: two of them are called 'one'"),
        (["first", "--model=second"], "--model: name one model; here are first and"),
        (
            ["--served-model-name", "a", "some/model"],
            "--served-model-name: takes all words behind it, here a and some/model; write MODEL",
        ),
        (
            ["first", "--served-model-name", "a", ""],
            "--served-model-name: the name '' is empty",
        ),
        (
            ["--enable-h2c", "true"],
            "--enable-h2c: takes no value: write --enable-h2c alone",
        ),
        (
            ["--restart-stages", "1"],
            "--restart-stages: takes no value: write --restart-stages alone",
        ),
        (
            ["--matryoshka", "0"],
            "--matryoshka: takes no value: write --no-matryoshka alone",
        ),
        (
            ["--prefix-caching=False"],
            "--prefix-caching: takes no value: write --no-pref",
        ),
        (
            ["--no-prefix-caching", "no"],
            "--prefix-caching: takes no value: write --prefix-",
        ),
        (["-5"], "--model: '-5' is not a model"),
        (["-"], "--model: '-' is not a model"),
        (["-p", "8"], "-p: there is no such option; --help lists all"),
        (
            ["--enable-h2c=5"],
            "--enable-h2c: takes no value: write --enable-h2c or --no",
        ),
        (["--nonsense", "1"], "--nonsense: there is no such option; --help lists all"),
        (
            ["--max-num-seq", "1"],
            "--max-num-seq: there is no such option; did you mean",
        ),
        (["--port"], "--port: expected one value"),
        # As in --api-key $KEY without such a variable.
        (["--api-key", "--port", "1"], "--api-key: expected one value"),
        (["--port", "--host", "::1"], "--port: expected one value"),
        (["--port", "high"], "--port: 'high' is not a whole number"),
        (["--port", "8000.0"], "--port: '8000.0' is not a whole number"),
        (["--max-model-len", "1e3"], "--max-model-len: '1e3' is not a whole number"),
        (["--max-model-len", "4.k"], "--max-model-len: '4.k' is not a whole number"),
        (["--max-model-len", "null"], "--max-model-len: 'null' is not a whole number"),
        (["--port", "None"], "--port: 'None' is not a whole number"),
        (["--drain-timeout", "soon"], "--drain-timeout: 'soon' is not a number"),
        (
            ["--kv-cache-memory", "-2GiB"],
            "--kv-cache-memory: '-2GiB' is not greater than zero",
        ),
        (["--port", "70000"], "--port: must be between 0 and 65535, got 70000"),
        (["--drain-timeout", "inf"], "--drain-timeout: must be 0 or more, and finite"),
        (["--body-timeout", "nan"], "--body-timeout: must be greater than 0, and"),
        ([""], "--model: must not be empty"),
        (["--model", " "], "--model: must not be empty"),
        (["--help=klingon"], "--help: no option's name contains 'klingon'"),
        (["--max-num-seqs", "0"], "--max-num-seqs: must be at least 1, got 0"),
        (["--max-num-seqs", "-1"], "--max-num-seqs: must be at least 1, got -1"),
        (["--kv-cache-memory", "lots"], "--kv-cache-memory: 'lots' is not a size such"),
        (
            ["--max-num-batched-tokens", "4"],
            "--max-num-batched-tokens: must be at least",
        ),
        (["--max-step-seconds", "0"], "--max-step-seconds: must be greater than 0"),
        (["--max-step-seconds", "nan"], "--max-step-seconds: must be greater than 0"),
        (
            ["--stop-repetition", "5", "4", "2"],
            "--stop-repetition: MIN must be between 0 and 4, got 5",
        ),
        (
            ["--stop-repetition", "1", "4", "1"],
            "--stop-repetition: COUNT must be between 2 and 2147483647, got 1",
        ),
        (["--stop-repetition", "4", "2"], "--stop-repetition: expected 3 values"),
        (
            ["--scheduling-policy", "lottery"],
            "--scheduling-policy: 'lottery' is not one of fcfs, priority",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert command.main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trioserve: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        # An address of TEST-NET-1: no machine has it.
        ("192.0.2.1", "Cannot assign requested address"),
        ("ä" * 64, "it is not the name of a host"),
        (
            "0.0.0.0:8001",
            "Name or service not known; write --host 0.0.0.0 --port 8001",
        ),
    ],
)
def test_a_host_that_cannot_be_taken_is_named(
    capsys: pytest.CaptureFixture[str], host: str, reason: str
) -> None:
    assert command.main(["serve", "--host", host]) == 2
    error = capsys.readouterr().err
    assert error == f"trioserve: --host: cannot listen on {host}: {reason}\n"


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the hub is asked for the model."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main(["serve", "no-such/model", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    address = f"127.0.0.1:{port}"
    assert (
        error == f"trioserve: --port: cannot take {address}: Address already in use"
        "; stop the program that has it, or write another --port\n"
    )


def test_the_usage_is_short_and_has_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main([]) == 2
    usage = capsys.readouterr().err
    assert usage.startswith("usage: trioserve COMMAND")
    assert "\n  trioserve serve\n" in usage
    assert len(usage.splitlines()) <= 24
    for arguments in (["--help"], ["--help", "serve"], ["-h", "x"]):
        assert command.main(arguments) == 0
        assert capsys.readouterr().out == usage


def test_a_word_of_simulate_belongs_to_no_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["simulate", "MODEL"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "trioserve: simulate: 'MODEL' is not an option; trioserve simulate --help lists them\n"
    )


def test_engine_options_exclude_those_of_the_socket() -> None:
    with pytest.raises(InvalidConfig, match="--port"):
        build_config(EngineConfig, {"port": 1})


@pytest.mark.parametrize(
    ("options", "has_sampling", "rule"),
    [
        ({}, True, (16, 256, 4)),
        ({"stop_repetition": (1, 2, 3)}, True, (1, 2, 3)),
        ({"generation_config": "none"}, False, None),
        ({"model": "x"}, False, None),
        ({"model": "x", "stop_repetition": (1, 2, 3)}, False, (1, 2, 3)),
        ({"stop_repetition": (0, 0, 0)}, True, (0, 0, 0)),
    ],
)
def test_the_default_model_has_defaults_of_its_own(
    options: dict[str, object],
    has_sampling: bool,
    rule: tuple[int, int, int] | None,
) -> None:
    model = build_config(EngineConfig, options).model
    assert bool(model.own_sampling) == has_sampling
    found = model.repetition_detection
    assert rule == (
        found and (found.min_pattern_size, found.max_pattern_size, found.min_count)
    )


def test_one_device_is_not_for_several_stages() -> None:
    options = {"device": "cuda:0", "pipeline_parallel_size": 2}
    with pytest.raises(InvalidConfig, match="--device: cuda:0 is one device"):
        build_config(EngineConfig, options)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidConfig("max_num_seqs", "see --port."), "max_num_seqs: see port."),
        (InvalidConfig("nonsense", "is none"), "nonsense: is none"),
        (
            InvalidConfig("chat_template", "cannot read /srv/models--org/a--v2.jinja"),
            "chat_template: cannot read /srv/models--org/a--v2.jinja",
        ),
        (
            InvalidConfig("chat_template", "cannot read --port/a or /srv/--port"),
            "chat_template: cannot read --port/a or /srv/--port",
        ),
        (
            InvalidConfig("pipeline_parallel_size", "torchrun has --nproc-per-node 2"),
            "pipeline_parallel_size: torchrun has --nproc-per-node 2",
        ),
        (
            ForeignOption("write --no-prefix-caching for --disable-radix-cache"),
            "write prefix_caching=False for disable_radix_cache",
        ),
    ],
)
def test_programs_read_keywords_and_nothing_else_is_respelled(
    error: StartupError, message: str
) -> None:
    with pytest.raises(StartupError) as caught, naming_keywords():
        raise error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2GiB", 2**31), ("512M", 2**29), ("1.5k", 1536), ("4 MiB", 2**22)],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes("kv_cache_memory", text) == size


SIZES = [option for option in OPTIONS if option.is_size]


def test_the_options_that_are_sizes_are_known() -> None:
    """Each default that is a size says that its option is one."""
    looks = {each.name for each in OPTIONS if re.search(r"\d[MG]iB", str(each.default))}
    assert looks | {"kv_cache_memory", "memory"} == {option.name for option in SIZES}


@pytest.mark.parametrize("option", SIZES, ids=lambda option: option.name)
def test_a_size_may_be_a_number_of_bytes(option: Option, tmp_path: Path) -> None:
    # A size that fits the limits between options.
    size = parse_bytes(option.name, option.default or "96MiB")
    config = build_config(ServeConfig, {option.name: size})
    if option.default is None:
        assert list_changes(config) == [(option, 96 << 20)]
    path = tmp_path / "serve.toml"
    path.write_text(f"{option.name} = {size}\n")
    models = ["one", "two"] if option.name == "memory" else []
    assert parse_serve([*models, "--config", str(path)]) == config
    for wrong in (1.5, True, [1]):
        with pytest.raises(InvalidConfig, match="not a size .* or a number of bytes"):
            build_config(ServeConfig, {option.name: wrong})
    with pytest.raises(InvalidConfig, match="not greater than zero"):
        build_config(ServeConfig, {option.name: -1})


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1e400", "nan", "2 PiB"])
def test_a_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--kv-cache-memory"):
        parse_bytes("kv_cache_memory", text)


FRONTS = {"api_processes": 2, "response_max_age": 0, "max_background_responses": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_processes": 0}, "--api-processes: must be at least 1"),
        ({"engine_process": False}, "--api-processes: .* share an engine process"),
        ({"response_max_age": 60}, "--response-max-age 0 and --max-background-"),
        ({"max_background_responses": 1}, "--response-max-age 0 and --max-background-"),
        ({"resume_seconds": 5}, "--resume-seconds: .* --api-processes 1"),
        (
            {"restart_stages": True, "pipeline_parallel_size": 2},
            "--restart-stages: .* --api-processes 1",
        ),
    ],
)
def test_several_http_processes_refuse_what_they_cannot_share(
    options: dict[str, object], message: str
) -> None:
    config = build_config(ServeConfig, FRONTS)
    assert config.bind.api_processes == 2
    with pytest.raises(InvalidConfig, match=message):
        build_config(ServeConfig, FRONTS | options)
