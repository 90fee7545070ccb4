"""The command line.

    trioserve serve [MODEL] [--config FILE] [--port PORT] ...
    trioserve simulate [--pipeline-parallel-size N] [--trace FILE] ...

`serve` under torchrun is the server where the rank is 0, and a stage elsewhere.

Exit codes: 0 after a stop that was asked for, 2 for what the user can mend (a wrong
option, a model that cannot be found), 3 when the engine failed, 128 + N when a second
signal N cut the drain short. A signal before the server has begun to load a model kills it,
which shells tell as 128 + N, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import errno
from functools import partial
import logging
import os
from pathlib import Path
import signal
import socket
import sys
import threading
import tomllib
from typing import TYPE_CHECKING

from ._version import __version__
from .errors import ForeignOption, InvalidConfig, StartupError

if TYPE_CHECKING:
    from .config import BindConfig, ServeConfig

# What takes longer to import is imported where it is needed, so that an interrupt is
# answered from the first moment on, and --help at once.

logger = logging.getLogger("trioserve")

_USAGE = """\
usage: trioserve serve [MODEL] [--config FILE] [options]
       trioserve serve --help
       trioserve simulate [options]
       trioserve simulate --help
       trioserve --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    Args:
      argv: None is the command line of this process, which then does nothing else.
    """
    if argv is not None:
        return _run(argv)
    _die_of_interrupts()
    code = _run(sys.argv[1:])
    _leave_threads(code)
    return code


def _die_of_interrupts() -> None:
    """End the process at once on SIGINT, as on SIGTERM, where nobody watches for it.

    Python would raise KeyboardInterrupt in the midst of an import. Before the server
    watches for signals, and after, there is nothing to put in order.
    """
    # Background processes of scripts ignore it, and are to go on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave_threads(code: int) -> None:
    """End the process now if threads of a load go on that was stopped.

    The interpreter would wait for them, for seconds if they import torch.
    """
    others = {*threading.enumerate()} - {threading.main_thread()}
    if any(not thread.daemon for thread in others):
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    match arguments:
        case ["--version" | "-V"]:
            sys.stdout.write(f"trioserve {__version__}\n")
            return 0
        case ["serve", *rest]:
            return _serve(rest)
        case ["simulate", *rest]:
            return _simulate(rest)
        case ["--help" | "-h"]:
            sys.stdout.write(_USAGE)
            return 0
        case [word, *_]:
            sys.stderr.write(f"trioserve: {word!r} is not a command\n{_USAGE}")
            return 2
        case _:
            sys.stderr.write(_USAGE)
            return 2


def _serve(arguments: list[str]) -> int:
    try:
        config = parse_serve(arguments)
        _obey_torchrun(config)
        from .observe.log_lines import set_up_logging

        set_up_logging(config.bind.log_level.upper())
        with _bind(config.bind) as sock:
            import trio

            from .startup.server import Server

            return trio.run(Server(config, sock).run)
    except StartupError as error:
        sys.stderr.write(f"trioserve: {error}\n")
        return 2


def _obey_torchrun(config: ServeConfig) -> None:
    """Be a stage, and never return, if torchrun has started this process as one.

    Raises:
      InvalidConfig: torchrun has started another number of processes.
    """
    from .pipeline.torchrun import find_torchrun
    from .processes import die_with_parent

    torchrun = find_torchrun()
    if torchrun is None:
        return
    torchrun.check(config.engine.parallel)
    # All its processes do, so that a second Ctrl-C, which ends it at once, leaves none.
    die_with_parent(os.getppid())
    if torchrun.rank > 0:
        from .startup.stage_process import run_joining_stage

        run_joining_stage(torchrun, config.bind.log_level.upper())


def _simulate(arguments: list[str]) -> int:
    import tyro

    from .simulation import SimulateConfig, report_simulation

    try:
        config = tyro.cli(
            SimulateConfig,
            prog="trioserve simulate",
            description=(
                "Play a load on a pipeline of simulated stages, in virtual time: without "
                "a model, with the real scheduler."
            ),
            args=arguments,
        )
        sys.stdout.write(report_simulation(config))
    except StartupError as error:
        sys.stderr.write(f"trioserve: {error}\n")
        return 2
    return 0


def parse_serve(arguments: Sequence[str]) -> ServeConfig:
    """Read the options of `serve`; flags win over the file that --config names.

    Raises:
      InvalidConfig: the file is unreadable, an option in it is wrong, or MODEL is not
        in its place.
      ForeignOption: a flag is another server's.
      SystemExit: a flag is wrong (2), or --help was asked for (0).
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    known, rest = parser.parse_known_args(arguments)
    _refuse_foreign_flags(rest)
    return _parse_flags(_name_model(rest), _read_file(known.config))


def _name_model(arguments: list[str]) -> list[str]:
    """Give MODEL, the first word if it is not a flag, the flag --model."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    if any(each.partition("=")[0] == "--model" for each in arguments):
        raise InvalidConfig("model", "name one model: as MODEL or by --model")
    return ["--model", *arguments]


def _parse_flags(arguments: Sequence[str], default: ServeConfig) -> ServeConfig:
    import tyro

    from .config import ServeConfig

    parse = partial(
        tyro.cli,
        ServeConfig,
        prog="trioserve serve [MODEL] [--config FILE]",
        description=(
            "Serve MODEL over an OpenAI-compatible API. FILE is TOML; its keys are "
            "the options below with underscores, and flags win over it."
        ),
        args=arguments,
        default=default,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    config: ServeConfig
    config, unknown = parse(return_unknown_args=True)
    if any(each.startswith("-") for each in unknown):
        # tyro names the flag, suggests others and raises SystemExit.
        parse()
    if unknown:
        raise InvalidConfig(
            "model",
            f"write MODEL before all options; {unknown[0]!r} is neither MODEL nor an "
            "option's value",
        )
    return config


def _refuse_foreign_flags(arguments: Sequence[str]) -> None:
    from .foreign_options import explain_foreign

    flags = (each.partition("=")[0] for each in arguments if each.startswith("-"))
    if explanation := explain_foreign(flags):
        raise ForeignOption(explanation)


def _read_file(path: str | None) -> ServeConfig:
    """Return the configuration of the file that --config names, or the default one."""
    from .config import ServeConfig, build_config

    if path is None:
        return ServeConfig()
    try:
        options = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfig.of_file("config", "read", path, error) from error
    try:
        return build_config(ServeConfig, options)
    except StartupError as error:
        raise InvalidConfig("config", f"{path}: {error}") from error


def _bind(config: BindConfig) -> socket.socket:
    """Take the port before the model is loaded, without listening yet.

    A port that is taken is told at once instead of after the load, and until the model
    is there clients are refused rather than left hanging.

    Raises:
      InvalidConfig: the address cannot be taken.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: a token must not wait for the next one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((config.host, config.port))
    # A TypeError tells of a name that no resolver could be asked for.
    except (OSError, TypeError) as error:
        sock.close()
        raise _explain_bind(config, error) from error
    return sock


def _explain_bind(config: BindConfig, error: OSError | TypeError) -> InvalidConfig:
    """Name the flag to mend: --host where no port of that host can be taken."""
    if isinstance(error, TypeError):
        reason = "it is not the name of a host"
        return InvalidConfig("host", f"cannot listen on {config.host}: {reason}")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        reason = f"cannot listen on {config.host}: {error.strerror}"
        return InvalidConfig("host", reason)
    address = f"{config.host}:{config.port}"
    return InvalidConfig("port", f"cannot take {address}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main())
