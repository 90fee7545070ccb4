"""Real servers in their own processes, with tiny models and a real tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx2 as httpx
import pytest

from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer

# These limits end a test that hangs. With ten busy processes on two cores, a start took
# more than a minute.
START_SECONDS = 180
END_SECONDS = 60

PLUGIN_PAGE = Path(__file__).parents[2] / "docs" / "reasoning-and-plugins.rst"

# A stream that runs until a test ends it.
LONG = {"prompt": "Once upon", "max_tokens": 400, "ignore_eos": True, "stream": True}

SERVE = (sys.executable, "-m", "trioserve", "serve")


@dataclass(kw_only=True)
class ServerProcess:
    """A server that has reported that it is ready."""

    process: subprocess.Popen[str]
    url: str
    log: list[str]
    reader: threading.Thread

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, signum: int = signal.SIGINT, seconds: float = END_SECONDS) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(seconds)

    def list_libraries(self) -> str:
        """List the files that the process has mapped, without its children's."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def read_log(self) -> str:
        """Return the whole log of a server that has ended."""
        self.reader.join()
        return "".join(self.log)


@dataclass(kw_only=True)
class EventStream:
    """A long completion whose first event has come."""

    lines: Iterator[str]

    def read_last(self) -> dict[str, Any]:
        """Read to the end and return the last event."""
        rest = [line for line in self.lines if line]
        assert rest[-1] == "data: [DONE]"
        last: dict[str, Any] = json.loads(rest[-2].removeprefix("data: "))
        return last


@contextmanager
def _open_stream(url: str) -> Iterator[EventStream]:
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=LONG, timeout=30
    ) as response:
        lines = response.iter_lines()
        next(lines)
        yield EventStream(lines=lines)


@pytest.fixture(scope="session")
def open_stream() -> Callable[[str], AbstractContextManager[EventStream]]:
    """Return a function that opens an EventStream of a server."""
    return _open_stream


@pytest.fixture(scope="session", autouse=True)
def helper(start_helper: Callable[[], object]) -> None:
    """Start the helper of warm_start.py, a child of this process, before tests count them."""
    start_helper()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let interrupts reach servers when pytest is a script's background process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_shared_memory_left() -> Iterator[None]:
    """Check that the test leaves no shared memory behind."""
    before = set(os.listdir("/dev/shm"))
    yield
    # Other programs of this machine also use shared memory for a while.
    deadline = time.monotonic() + END_SECONDS
    while new := set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < deadline, f"{new} stays"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the vocabulary of the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    save_tiny_model(
        "llama",
        folder,
        vocab_size=512,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
    )
    return tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in of docs/: my_processors.NoRepeat, called no-repeat."""
    blocks = re.findall(r":: python\n\n((?:    .*\n|\n)+)", PLUGIN_PAGE.read_text())
    (block,) = (block for block in blocks if "(LogitsProcessor):" in block)
    source = "\n".join(line[4:] for line in block.splitlines())
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "my_processors.py").write_text(source)
    return folder


def begin_process(
    stack: ExitStack,
    command: list[str],
    executable: str | None = None,
    **variables: str,
) -> Callable[[], ServerProcess]:
    """Start a server and return a function that waits until it is ready.

    Tests start several at once: one alone leaves a core idle during its imports.

    Args:
      executable: sys.executable starts a new interpreter; see warm_start.py.
    """
    process = stack.enter_context(
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            executable=executable,
        )
    )
    log: list[str] = []
    urls: list[str] = []
    is_settled = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if found := re.search(r"(?:Running|ready .*) on (https?://\S+)", line):
                urls.append(found[1])
                is_settled.set()
        is_settled.set()

    # The log is read to its end, because a full pipe would stop the server.
    thread = threading.Thread(target=read)
    thread.start()
    # These run in reverse order: kill, read the log to its end, wait for the process.
    stack.callback(thread.join)
    stack.callback(process.kill)

    def wait() -> ServerProcess:
        assert is_settled.wait(START_SECONDS), "the server neither starts nor ends"
        assert urls, "".join(log)
        return ServerProcess(process=process, url=urls[0], log=log, reader=thread)

    return wait


def start_process(
    stack: ExitStack,
    command: list[str],
    executable: str | None = None,
    **variables: str,
) -> ServerProcess:
    return begin_process(stack, command, executable, **variables)()


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts `trioserve serve` with some arguments."""
    with ExitStack() as stack:

        def start(*arguments: str, executable: str | None = None) -> ServerProcess:
            command = [*SERVE, *arguments, "--port", "0"]
            return start_process(stack, command, executable)

        yield start


@pytest.fixture(scope="session")
def server(model_folder: Path, plugin_folder: Path) -> Iterator[ServerProcess]:
    """One server for all tests that leave it as they found it.

    Its interpreters are new: `trioserve serve` and the engine process.
    """
    with ExitStack() as stack:
        yield start_process(
            stack,
            [
                *(*SERVE, str(model_folder), "--port", "0"),
                *("--kv-cache-memory", "64MiB", "--num-threads", "1"),
                *("--progress-timeout", "2", "--max-logprobs", "-1"),
                *("--logits-processor", "my_processors:NoRepeat"),
            ],
            sys.executable,
            PYTHONPATH=str(plugin_folder),
        )
