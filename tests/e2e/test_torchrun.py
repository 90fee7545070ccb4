"""Stages that torchrun starts: two agents on this machine, as if on two machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
import signal
import socket
import subprocess

import httpx2 as httpx
import psutil
import pytest
from server_process import ServerProcess, list_own, open_stream, start_process
import trio
from warm_start import FORK

import trioserve

pytestmark = pytest.mark.slow

# A prompt of several chunks, and a short answer.
SHORT = {"prompt": "Once upon a time " * 20, "max_tokens": 40, "temperature": 0.0}

# torchrun checks its processes ten times a second, and the machine may be busy.
END_SECONDS = 60


@dataclass(kw_only=True)
class Cluster:
    """Two machines; the first one runs the server, its engine and stage 0.

    Args:
      server: the first machine's torchrun.
      other: the second machine's torchrun.
    """

    server: ServerProcess
    other: subprocess.Popen[bytes]

    def find_stage(self) -> psutil.Process:
        """Find the only process on the second machine."""
        [stage] = list_own(self.other.pid)
        return stage

    def list_processes(self) -> list[psutil.Process]:
        """List all processes except torchrun's own."""
        pids = self.server.process.pid, self.other.pid
        return [p for pid in pids for p in list_own(pid, recursive=True)]

    def wait(self, processes: list[psutil.Process]) -> tuple[int, int]:
        """Wait until all processes have ended, and return torchrun's exit codes."""
        codes = self.server.process.wait(END_SECONDS), self.other.wait(END_SECONDS)
        _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
        assert alive == []
        return codes


@contextmanager
def start_cluster(model_folder: Path, log: Path, *options: str) -> Iterator[Cluster]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def launch(rank: int) -> list[str]:
        # The commands of docs/pipelines.rst.
        return [
            *(*FORK, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)),
            *("--master-addr", "127.0.0.1", "--master-port", str(port)),
            *("-m", "trioserve", "serve", str(model_folder)),
            *("--pipeline-parallel-size", "2", "--kv-cache-memory", "16MiB"),
            *("--max-num-batched-tokens", "128", "--port", "0", *options),
        ]

    with ExitStack() as stack:
        file = stack.enter_context(log.open("wb"))
        other = stack.enter_context(subprocess.Popen(launch(1), stderr=file))
        stack.callback(other.kill)
        yield Cluster(server=start_process(stack, launch(0)), other=other)


async def complete_alone(model_folder: Path) -> str:
    """Return the answer of a single process to the same request."""
    async with trioserve.open_engine(
        str(model_folder), kv_cache_memory="16MiB"
    ) as engine:
        async with engine.open_completion(
            SHORT["prompt"], max_tokens=SHORT["max_tokens"], temperature=0
        ) as completion:
            [text] = await completion.collect()
            return text.text


def test_two_machines_answer_as_one_does_and_fail_together(
    model_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with start_cluster(model_folder, log) as cluster:
        processes = cluster.list_processes()
        # The server, its engine, and two stages.
        assert len(processes) == 4
        answer = httpx.post(
            f"{cluster.server.url}/v1/completions", json=SHORT, timeout=30
        ).json()
        assert answer["choices"][0]["text"] == trio.run(complete_alone, model_folder)
        with open_stream(cluster.server.url) as stream:
            cluster.find_stage().kill()
            last = stream.read_last()
        assert last["error"]["code"] == 500
        codes = cluster.wait(processes)
        assert 0 not in codes
    assert "StageDied: stage 1 closed its connection" in cluster.server.read_log()


def test_a_stopped_server_waits_for_streams_and_ends_all_stages(
    model_folder: Path, tmp_path: Path
) -> None:
    """The stage on the other machine ignores signals; the engine is in the server."""
    log = tmp_path / "log"
    with start_cluster(model_folder, log, "--no-engine-process") as cluster:
        processes = cluster.list_processes()
        with open_stream(cluster.server.url) as stream:
            cluster.find_stage().send_signal(signal.SIGTERM)
            cluster.find_stage().send_signal(signal.SIGINT)
            cluster.server.process.send_signal(signal.SIGINT)
            last = stream.read_last()
        assert last["choices"][0]["finish_reason"] == "length"
        # 1 is torchrun's own code after a signal. Its processes ended without errors.
        assert cluster.wait(processes) == (1, 0)
    assert "the engine failed" not in cluster.server.read_log()
    assert "the engine closed its connection, so this stage ends" in log.read_text()
