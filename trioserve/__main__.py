"""The command line.

    trioserve serve [MODEL] [--config FILE] [--port PORT] ...
    trioserve simulate [--pipeline-parallel-size N] [--trace FILE] ...
    trioserve top [--url URL] [--api-key KEY] [--once]

Under torchrun `serve` is the server in the process of rank 0, and a stage elsewhere.

Exit codes: 0 after a requested stop, 1 if `top` cannot ask its server, 2 for a mistake that the user can correct (a
wrong option, a model that cannot be found), 3 if the engine failed, 128 + N if a second
signal N cut the drain short. A signal that comes before the server has begun to load a model
kills the process, which shells report as 128 + N, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import logging
import os
from pathlib import Path
import signal
import sys
import threading
import tomllib
from typing import TYPE_CHECKING

from ._version import __version__
from .errors import InvalidConfig, StartupError

if TYPE_CHECKING:
    from .config import ServeConfig
    from .config.flags import CommandLine

# Modules that take long to import are imported where they are needed: the process answers
# an interrupt from the first moment on, and --help at once.

_USAGE = """\
usage: trioserve COMMAND ...

  trioserve serve [MODEL] [options]   serve a model over an OpenAI-compatible API
  trioserve simulate [options]        play a load on a simulated pipeline, without a model
  trioserve top [options]             show the running requests of a server, live
  trioserve --version                 print the version

For example, the default model on port 8000:

  trioserve serve

`trioserve serve --help` lists all options.
"""

_SERVE_HELP = """\
usage: trioserve serve [MODEL] [--config FILE] [options]

Serve MODEL over an OpenAI-compatible API. For example:

  trioserve serve Qwen/Qwen3-0.6B --port 8001 --max-model-len 4096

FILE is TOML. Its keys are the options below with underscores.
Flags win over FILE. The value None unsets an option that has no default.
Defaults are in brackets. --help=WORD explains the options
whose names contain WORD, and --help=all explains all.
"""

_SIMULATE_HELP = """\
usage: trioserve simulate [options]

Play a load on a pipeline of simulated stages, in virtual time: without a model,
with the real scheduler. Defaults are in brackets. --help=WORD explains the
options whose names contain WORD, and --help=all explains all.
"""

_TOP_HELP = """\
usage: trioserve top [options]

Show the running requests of a server in the terminal, live; keys sort and
cancel them. If the output is no terminal, print one table.
Defaults are in brackets. --help=WORD explains the options whose names
contain WORD, and --help=all explains all.
"""

# Values that users write behind a switch by mistake; they would be read as a model.
_SWITCH_VALUES = {"true", "false", "on", "off", "yes", "no", "1", "0"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
      argv: None means that this command is the whole process, and takes its arguments.
    """
    if argv is not None:
        return _run(argv)
    _die_of_interrupts()
    code = _run(sys.argv[1:])
    _leave_threads(code)
    return code


def _die_of_interrupts() -> None:
    """Let SIGINT end the process at once, as SIGTERM does, unless it has a handler.

    Python would raise KeyboardInterrupt in the middle of an import. Before and after
    the time in which the server handles signals, there is nothing to clean up.
    """
    # Scripts start background processes that ignore the signal. This must not change.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_threads(code: int) -> None:
    """End the process now if threads of a stopped load still run.

    The interpreter would wait for them, for seconds if they import torch.
    """
    others = {*threading.enumerate()} - {threading.main_thread()}
    if any(not thread.daemon for thread in others):
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    try:
        return _run_command(arguments)
    except StartupError as error:
        sys.stderr.write(f"trioserve: {error}\n")
        return 2


def _run_command(arguments: Sequence[str]) -> int:
    match arguments:
        case ["serve", *rest]:
            return _serve(rest)
        case ["simulate", *rest]:
            return _simulate(rest)
        case ["top", *rest]:
            return _top(rest)
        case ["--version" | "-V"]:
            return _print(f"trioserve {__version__}\n")
        case ["--help" | "-h", *_]:
            return _print(_USAGE)
        case [word, *_]:
            sys.stderr.write(f"trioserve: {word!r} is not a command\n\n{_USAGE}")
            return 2
        case _:
            # A script that lost its arguments must notice that, so this is an error.
            sys.stderr.write(_USAGE)
            return 2


def _print(text: str) -> int:
    """Write to standard output; a reader such as `head` may stop before the end."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _serve(arguments: Sequence[str]) -> int:
    config = parse_serve(arguments)
    _obey_torchrun(config)
    from .observe.log_lines import set_up_logging

    set_up_logging(config.bind.log_level.upper())
    from .startup.address import open_address

    with open_address(config.bind) as sock:
        import trio

        from .startup.server import Server

        return trio.run(Server(config, sock).run)


def _obey_torchrun(config: ServeConfig) -> None:
    """Run a stage, and never return, if torchrun has started this process as one.

    Raises:
      InvalidConfig: torchrun has started another number of processes.
    """
    from .pipeline.torchrun import find_torchrun
    from .processes import die_with_parent

    torchrun = find_torchrun()
    if torchrun is None:
        return
    torchrun.check(config.engine.parallel)
    # Every process of torchrun does this, so none is left after a second Ctrl-C, which
    # ends torchrun at once.
    die_with_parent(os.getppid())
    if torchrun.rank > 0:
        from .startup.stage_process import run_joining_stage

        run_joining_stage(torchrun, config.bind.log_level.upper())


def _simulate(arguments: Sequence[str]) -> int:
    from .config import build_config
    from .simulation import SimulateConfig, report_simulation

    line = _read_arguments(SimulateConfig, arguments, _SIMULATE_HELP)
    if line.words:
        raise StartupError(f"simulate: {line.words[0]!r} is not an option")
    config = build_config(SimulateConfig, line.values)
    return _print(report_simulation(config))


def _top(arguments: Sequence[str]) -> int:
    from .config import build_config
    from .top import TopConfig, run_top

    line = _read_arguments(TopConfig, arguments, _TOP_HELP)
    if line.words:
        raise StartupError(f"top: {line.words[0]!r} is not an option")
    return run_top(build_config(TopConfig, line.values), _print)


def parse_serve(arguments: Sequence[str]) -> ServeConfig:
    """Read the arguments of `serve`; flags win over the file that --config names.

    Raises:
      StartupError: a flag is unknown.
      InvalidConfig: the file cannot be read, an option in it or among the flags is wrong,
        or there are two models.
      ForeignOption: an option is another server's.
      SystemExit: --help was given (0).
    """
    from .config import ServeConfig, build_config

    line = _read_arguments(ServeConfig, arguments, _SERVE_HELP, others=("config",))
    path = line.values.pop("config", None)
    values = line.values | _name_model(line)
    in_file = {} if path is None else _read_file(path)
    try:
        # The file is checked alone first, so that its errors can name the file.
        config = build_config(ServeConfig, in_file)
    except StartupError as error:
        raise InvalidConfig("config", f"{path}: {error}") from error
    if not values:
        return config
    return build_config(ServeConfig, in_file | values)


def _read_arguments(
    config_type: type, arguments: Sequence[str], usage: str, others: Iterable[str] = ()
) -> CommandLine:
    """Take arguments apart. If --help is given, print the help and end.

    Raises:
      SystemExit: after the help (0).
      StartupError: no option's name contains the word of --help.
    """
    from .config import list_options
    from .config.flags import read_command_line

    line = read_command_line(config_type, arguments, others=others)
    if line.help_word is None:
        return line
    from .config.help import describe_options

    text = describe_options(list_options(config_type), line.help_word)
    raise SystemExit(_print(text if line.help_word else f"{usage}\n{text}"))


def _name_model(line: CommandLine) -> dict[str, str]:
    """Return the model among the words, by the name of its option."""
    models = [*line.words]
    if "model" in line.values:
        models.append(line.values["model"])
    if len(models) > 1:
        raise InvalidConfig("model", f"name one model; here are {' and '.join(models)}")
    if not line.words:
        return {}
    [word] = line.words
    if word.lower() in _SWITCH_VALUES:
        reason = "is no model; a switch takes no value: write --NAME or --no-NAME"
        raise InvalidConfig("model", f"{word!r} {reason}")
    if word.startswith("-"):
        raise InvalidConfig("model", f"{word!r} is no model")
    return {"model": word}


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


if __name__ == "__main__":
    sys.exit(main())
