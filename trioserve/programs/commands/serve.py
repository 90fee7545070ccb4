"""`trioserve serve`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
import os
from pathlib import Path
import sys
import tomllib
from typing import TYPE_CHECKING, Any, Final

from ...errors import InvalidConfig, StartupError
from ..command import Command, check_word, importing, name_model

if TYPE_CHECKING:
    from ...config import ServeConfig, ServedModel
    from ...config.flags import CommandLine

_DESCRIPTION = """\
Serve MODEL over an OpenAI-compatible API. For example:

  trioserve serve Qwen/Qwen3-0.6B --port 8001 --max-model-len 4096

Several models share the address, and requests choose one by its name.

FILE is TOML. Its keys are the options below with underscores.
Flags win over FILE. The value None unsets an option that has no default.
"""


def parse_serve(arguments: Sequence[str]) -> ServeConfig:
    """Read the arguments of `serve`; flags win over the file that --config names.

    Raises:
      StartupError: a flag is unknown.
      InvalidConfig: the file cannot be read, an option in it or among the flags is wrong,
        or there are two models.
      ForeignOption: an option is another server's.
      SystemExit: --help was given (0).
    """
    return _build(SERVE.read(arguments))[0]


def _build(line: CommandLine) -> tuple[ServeConfig, list[ServedModel]]:
    """Return the configuration, and the models if there are several."""
    from ...config import list_models, read_models

    path = line.values.pop("config", None)
    in_file = {} if path is None else _read_file(path)
    if len(line.words) > 1 and "model" not in line.values:
        for word in line.words:
            check_word(word)
        config = _build_config(in_file, line.values, path)
        models = list_models(line.words, in_file | line.values)
    elif (file := line.values.get("models", in_file.get("models"))) is not None:
        if line.words or "model" in line.values or "model" in in_file:
            raise InvalidConfig("models", "has all models; name no MODEL beside it")
        config = _build_config(in_file, line.values, path)
        models = read_models(str(file), in_file | line.values)
    else:
        config = _build_config(in_file, line.values | name_model(line), path)
        models = []
    _check_several(config, models)
    return config, models


def _check_several(config: ServeConfig, models: Sequence[ServedModel]) -> None:
    """Refuse options that have no effect, or that several models cannot obey.

    Raises:
      InvalidConfig
    """
    from ...config import list_changes

    if not models:
        for option, _ in list_changes(config.models):
            raise InvalidConfig(option.name, "is for several models; there is one")
        return
    if config.bind.api_processes > 1:
        raise InvalidConfig(
            "api_processes",
            "is only possible with one model: several are loaded and unloaded by one "
            "HTTP process",
        )
    if not config.process.engine_process:
        raise InvalidConfig(
            "engine_process", "is on with several models: each has a process of its own"
        )
    if config.engine.model.served_model_name and config.models.models is None:
        raise InvalidConfig(
            "served_model_name",
            "is for one model; --models FILE gives names to several",
        )


def _build_config(
    in_file: dict[str, object], values: dict[str, Any], path: str | None
) -> ServeConfig:
    from ...config import ServeConfig, build_config

    try:
        # The file is checked alone first, so that its errors can name the file.
        config = build_config(ServeConfig, in_file)
    except StartupError as error:
        raise InvalidConfig("config", f"{path}: {error}") from error
    if not values:
        return config
    return build_config(ServeConfig, in_file | values)


def _run(line: CommandLine) -> int:
    config, models = _build(line)
    _obey_torchrun(config, models)
    from ...startup.log_lines import set_up_logging

    set_up_logging(config.bind.log_level.upper())
    with _starting_engine(config, models):
        from ...startup.address import open_address
        from ...startup.first_checks import check_first

        if not models:
            check_first(config.engine)
        with open_address(config.bind) as sock:
            import trio

            from ...startup.server import Server

            return trio.run(Server(config, sock, models).run)


def _starting_engine(
    config: ServeConfig, models: Sequence[ServedModel]
) -> AbstractContextManager[None]:
    """Start the engine process while this one has to import HTTP, which takes a second."""
    from ...processes import start_early
    from ...startup.engine_process import ENGINE_PROCESS, list_arguments

    # Several models start theirs later.
    if models or not config.process.engine_process:
        return nullcontext()
    return start_early(ENGINE_PROCESS, *list_arguments(config.engine))


def _obey_torchrun(config: ServeConfig, models: Sequence[ServedModel]) -> None:
    """Run a stage, and never return, if torchrun has started this process as one.

    Raises:
      InvalidConfig: torchrun has started another number of processes, or there are
        several HTTP processes.
    """
    from ...executor.pipeline.torchrun import find_torchrun
    from ...processes import die_with_parent

    torchrun = find_torchrun()
    if torchrun is None:
        return
    if models:
        raise InvalidConfig("model", "must be one with torchrun")
    torchrun.check(config.engine.parallel)
    if config.bind.api_processes > 1:
        raise InvalidConfig("api_processes", "must be 1 with torchrun")
    # Every process of torchrun does this, so none is left after a second Ctrl-C, which
    # ends torchrun at once.
    die_with_parent(os.getppid())
    if torchrun.rank > 0:
        from ...startup.stage_process import run_joining_stage

        run_joining_stage(torchrun, config.bind.log_level.upper())


def _read_file(path: str) -> dict[str, object]:
    """Return the options of the file that --config names."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfig.of_file("config", "read", path, error) from error
    for name, value in values.items():
        if isinstance(value, dict):
            reason = f"[{name}] is a table; write options without tables"
            raise InvalidConfig("config", f"{path}: {reason}")
    return values


SERVE: Final = Command(
    name="serve",
    synopsis="[MODEL ...] [--config FILE] [options]",
    usage="[MODEL ...] [options]",
    summary="serve models over an OpenAI-compatible API",
    description=_DESCRIPTION,
    load_config=importing("...config", "ServeConfig"),
    run=_run,
    max_words=sys.maxsize,
    others=("config",),
)
