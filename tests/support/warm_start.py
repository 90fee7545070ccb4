"""Starts processes of trioserve as forks of a process that has imported torch.

A new interpreter takes seconds of processor time to import an engine, and tests start some
eighty processes. `warm_start()` replaces subprocess.Popen. The commands in _COMMANDS, and those
that begin with FORK, are forks from then on: children of the process that asked for them, with
the arguments, variables, descriptors and exit codes that they would have otherwise. All other
commands, and those with `Popen(executable=...)`, get a new interpreter. Use that for variables
that a library reads when it is imported.

A process with threads cannot fork safely. So each process that asks has a helper, which was
forked before any thread began. The helper forks twice: the process in the middle ends at once,
and the system gives the new process to the one that asked, which is its subreaper meanwhile.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
import ctypes
from dataclasses import dataclass, field
import fcntl
import gc
from importlib import import_module
import json
import os
from pathlib import Path
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from types import ModuleType
from typing import Any, NoReturn
import weakref

# The beginning of a command whose test is not about the start of an interpreter: a module
# (-m), a program (-c), or the path of a script follows. A new interpreter ignores the option.
FORK = (sys.executable, "-X", "fork")

_COMMANDS = (
    [*FORK[1:]],
    ["-m", "trioserve", "serve"],
    # torchrun's processes.
    ["-u", "-m", "trioserve", "serve"],
    ["-m", "trioserve", "run-batch"],
    ["-m", "trioserve.testing.supervisor_process"],
    ["-P", "-m", "trioserve.startup.engine_process"],
    ["-P", "-m", "trioserve.startup.http_process"],
    ["-P", "-m", "trioserve.startup.stage_process"],
    ["-P", "-m", "trioserve.testing.fake_engine_process"],
    ["-P", "-m", "kit.engines.engine_process"],
    # execnet's processes, which run the tests.
    ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"],
)

# Modules that these commands import for a model that they recognise, in order.
_MODULES = (
    "trioserve.programs.commands.run_batch",
    "trioserve.programs.commands.serve",
    "trioserve.server.app",
    "trioserve.startup.engine_host",
    "trioserve.startup.engine_process",
    "trioserve.startup.http_process",
    "trioserve.startup.http_server",
    "trioserve.startup.one_process",
    "trioserve.startup.stage_process",
    "trioserve.startup.supervisor",
    "trioserve.model.loading.load",
    "trioserve.model.loading.plain.llama",
    "trioserve.model.attention.choose",
    "trioserve.model.open",
    "trioserve.model.trial",
    "trioserve.testing.fake_engine_process",
    "trioserve.testing.supervisor_process",
    # These take longest of what the tests themselves import.
    "anthropic",
    "hypothesis",
    "openai",
)

# A fork writes its command here, where `ps` and psutil read it.
_PLACE = "-" * 8192

# Signals that a process may ignore for the processes that it starts.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), since Linux 6.1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A process to start. Its descriptors have the numbers in `descriptors`."""

    arguments: list[str]
    variables: dict[str, str]
    folder: str
    descriptors: list[int]
    group: int
    is_session: bool
    parent: int = field(default_factory=os.getpid)
    ignored: list[int] = field(
        default_factory=lambda: [
            each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_IGN
        ]
    )


class WarmClient:
    """Asks a helper for processes.

    Args:
      open_helper: connects to the helper.
    """

    def __init__(self, open_helper: Callable[[], socket.socket]) -> None:
        self._open_helper = open_helper
        self._sock: socket.socket | None = None
        self._lock = threading.Lock()

    def takes(self, arguments: list[str]) -> bool:
        command = arguments[1:]
        return (
            arguments[0] == sys.executable
            and any(command[: len(each)] == each for each in _COMMANDS)
            and len("\0".join(arguments)) < len(_PLACE)
        )

    def connect(self) -> socket.socket:
        """Start the helper, if nobody has."""
        with self._lock:
            if self._sock is None:
                self._sock = self._open_helper()
            return self._sock

    def preload(self, *modules: str) -> None:
        """Import modules that many of the processes will need, and most others not."""
        self._ask(modules, [])

    def start(self, job: _Job, descriptors: list[int]) -> int:
        """Start a process and return its number."""
        return self._ask(vars(job), descriptors)

    def _ask(self, request: object, descriptors: list[int]) -> int:
        body = json.dumps(request).encode()
        sock = self.connect()
        with self._lock:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(sock, [b"%8d" % len(body)], descriptors)
                sock.sendall(body)
                return int(sock.recv(8))
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class _WarmPopen(subprocess.Popen):  # type: ignore[type-arg]
    client: WarmClient

    # The step of Popen that starts the process.
    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        preexec, _, pass_fds, cwd, env, _, _, shell, *more = rest
        pipes, session, group = more[:6], more[-2], more[-1]
        arguments = [args] if isinstance(args, (str, bytes)) else [*map(str, args)]
        is_plain = not (executable or preexec or shell)
        if not (is_plain and self.client.takes(arguments)):
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        theirs = [pipes[0], pipes[3], pipes[5]]
        standard = [own if fd == -1 else fd for own, fd in enumerate(theirs)]
        job = _Job(
            arguments=arguments,
            variables=dict(os.environ if env is None else env),
            folder=str(cwd or os.getcwd()),
            descriptors=[0, 1, 2, *pass_fds],
            group=group,
            is_session=session,
        )
        self.pid = self.client.start(job, [*standard, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@contextmanager
def warm_start() -> Iterator[WarmClient]:
    """Replace subprocess.Popen. Its process may be such a fork, and has a helper then.

    Yields:
      the client of the helper, a child of this process. The first command starts it, unless
      `connect` or `preload` has done so.
    """
    if issubclass(subprocess.Popen, _WarmPopen):
        yield _WarmPopen.client
        return
    ours, theirs = socket.socketpair()
    helpers = []

    def open_helper() -> socket.socket:
        helpers.append(
            original(
                [sys.executable, __file__, str(theirs.fileno()), _PLACE],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # numpy's library would start threads.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        )
        theirs.close()
        return ours

    original = subprocess.Popen
    client = _replace_popen(open_helper)
    try:
        with ours, theirs:
            yield client
    finally:
        subprocess.Popen = original  # type: ignore[misc]
        for helper in helpers:
            helper.wait()


def _replace_popen(open_helper: Callable[[], socket.socket]) -> WarmClient:
    client = _WarmPopen.client = WarmClient(open_helper)
    subprocess.Popen = _WarmPopen  # type: ignore[misc]
    return client


def _find_no_helper() -> NoReturn:
    raise AssertionError("a helper starts no process of these commands itself")


def _serve(sock: socket.socket) -> _Job:
    """Fork for each job, until the other end closes. Return in each new process."""
    while True:
        header, received, _, _ = socket.recv_fds(sock, 8, 64)
        if not header:
            os._exit(0)
        body = b""
        while len(body) < int(header):
            body += sock.recv(int(header) - len(body))
        request = json.loads(body)
        if isinstance(request, list):
            _import_all(request)
            sock.sendall(b"%8d" % 0)
            continue
        reader, writer = os.pipe()
        if middle := os.fork():
            for each in (*received, writer):
                os.close(each)
            # When it has ended, the new process has its parent.
            os.waitpid(middle, 0)
            sock.sendall(os.read(reader, 8))
            os.close(reader)
        elif child := os.fork():
            os.write(writer, b"%8d" % child)
            os._exit(0)
        else:
            job = _Job(**request)
            _take_descriptors(received, job.descriptors)
            return job


def _take_descriptors(received: list[int], wanted: list[int]) -> None:
    """Give descriptors their numbers, and close all others."""
    high = 1 + max(*received, *wanted)
    for number, each in enumerate(received):
        os.dup2(each, high + number)
    os.closerange(3, high)
    for number, each in enumerate(wanted):
        os.dup2(high + number, each)
    last = 3
    for each in sorted({*wanted} - {0, 1, 2}):
        os.closerange(last, each)
        last = each + 1
    os.closerange(last, os.sysconf("SC_OPEN_MAX"))


def _become(job: _Job, path: list[str]) -> None:
    """Take the place of a new interpreter.

    Args:
      path: the search path without PYTHONPATH.
    """
    while os.getppid() != job.parent:
        time.sleep(0.0005)
    for each in _SIGNALS:
        default = (
            signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL
        )
        signal.signal(each, signal.SIG_IGN if each in job.ignored else default)
    if job.is_session:
        os.setsid()
        if os.isatty(0):
            # It would be the terminal of the first program that opens it.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    elif job.group != -1:
        os.setpgid(0, job.group)
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.variables)
    is_safe = "-P" in job.arguments[:2]
    folders = [] if is_safe else [job.folder]
    folders += filter(None, job.variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*folders, *(each for each in path if each not in folders)]
    sys.orig_argv = job.arguments
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    _write_command(job.arguments)
    _give_helper(path)


def _write_command(arguments: list[str]) -> None:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # They are the fields 48 and 49 of all; two stand before the bracket.
    start, end = (int(fields[number - 3]) for number in (48, 49))
    text = "\0".join(arguments).encode()
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _give_helper(path: list[str]) -> None:
    """Fork a helper for the processes that this one will start."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork():
        theirs.close()
        _replace_popen(lambda: ours)
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    _write_command(["warm_start"])
    nowhere = os.open(os.devnull, os.O_RDWR)
    _take_descriptors([nowhere] * 3 + [theirs.detach()], [0, 1, 2, 3])
    ours.detach()
    _work(socket.socket(fileno=3), path)


def _work(sock: socket.socket, path: list[str]) -> NoReturn:
    """Serve jobs; in each new process, run its command."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    job = _serve(sock)
    sock.detach()
    _become(job, path)
    first = next(place for place, each in enumerate(job.arguments) if _is_program(each))
    code = _run(*job.arguments[first:])
    # As the interpreter does, except that it would take torch apart, for a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _is_program(argument: str) -> bool:
    return argument in ("-m", "-c") or argument.endswith(".py")


def _run(kind: str, *command: str) -> int:
    """Run a program as the interpreter does, and return the exit code."""
    sys.argv[:] = command if kind == "-m" else [kind, *command[kind == "-c" :]]
    try:
        if kind == "-m":
            module = command[0]
            # It is not imported there.
            sys.modules.pop(module if "." in module else f"{module}.__main__", None)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(command[0], "<string>", "exec"), vars(main))
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _import_all(modules: Iterable[str]) -> None:
    for each in modules:
        # The tests for GPUs need fewer packages.
        with suppress(ModuleNotFoundError):
            import_module(each)
    # Each process would take torch's libraries apart at its end, for 30 to 80 ms.
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        finalizer.detach()
    assert len(os.listdir("/proc/self/task")) == 1, "a helper has no other thread"
    gc.collect()
    gc.freeze()
    _collapse()


def _collapse() -> None:
    """Put memory into huge pages, so that a fork copies a table of hundreds of entries.

    The table of 400 MB in small pages has 95,000. Where the system has no huge pages, nothing
    happens.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, _, inode, *name = line.split()
        start, end = (int(each, 16) for each in span.split("-"))
        if mode == "rw-p" and inode == "0" and name != ["[stack]"]:
            _libc.madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE
            )


def main() -> None:
    known = {*os.environ.get("PYTHONPATH", "").split(os.pathsep), sys.path[0]}
    path = [each for each in sys.path if each not in known]
    # Processes that are forks find the class that they are made by.
    sys.modules["warm_start"] = sys.modules["__main__"]
    # Before the imports: torch's launcher keeps the class that it finds.
    _replace_popen(_find_no_helper)
    _import_all(_MODULES)
    _work(socket.socket(fileno=int(sys.argv[1])), path)


if __name__ == "__main__":
    main()
