"""The engine in a process of its own: either side is killed, stopped or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

import httpx2 as httpx
import psutil
import pytest
from server_process import open_stream
import trio

import trioserve
from trioserve.errors import EngineDied, EngineProcessDied, WeightsNotFound

pytestmark = pytest.mark.slow

Start = Callable[..., Any]

# Each side should notice the other one's end within this time.
SECOND = 1.0

# After a kill, the system unmaps gigabytes of libraries, and the machine may be busy.
LATE = 20.0


def list_engines(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [
        child for child in psutil.Process(process.pid).children() if is_engine(child)
    ]


def is_engine(child: psutil.Process) -> bool:
    # Imported libraries start processes of their own, which soon end.
    try:
        return "trioserve.startup.engine_process" in child.cmdline()
    except psutil.NoSuchProcess:
        return False


def find_engine(process: subprocess.Popen[str]) -> psutil.Process:
    [engine] = list_engines(process)
    return engine


def wait_gone(process: psutil.Process, seconds: float = SECOND + LATE) -> None:
    try:
        process.wait(seconds)
    except psutil.NoSuchProcess:
        pass


@pytest.mark.usefixtures("no_shared_memory_left")
def test_a_killed_engine_gives_every_client_an_error_and_ends_the_server(
    start_server: Start, model_folder: Path
) -> None:
    server = start_server(str(model_folder), "--kv-cache-memory", "16MiB")
    engine = find_engine(server.process)
    with open_stream(server.url) as stream:
        engine.kill()
        last = stream.read_last()
    assert last["error"]["code"] == 500
    assert server.process.wait(SECOND + LATE) == 3
    log = server.read_log()
    assert "the engine failed: the engine process was ended by SIGKILL" in log
    assert "Traceback" not in log
    assert not engine.is_running()


@pytest.mark.usefixtures("no_shared_memory_left")
def test_an_engine_without_memory_tells_its_clients_and_ends_the_server(
    start_server: Start, model_folder: Path
) -> None:
    """The first grammar needs a library, for which there is no room."""
    server = start_server(str(model_folder), "--kv-cache-memory", "16MiB")
    engine = find_engine(server.process)
    body = {"prompt": "Hi", "structured_outputs": {"choice": ["yes", "no"]}}
    with open_stream(server.url) as stream:
        num_bytes = engine.memory_info().vms
        engine.rlimit(psutil.RLIMIT_AS, (num_bytes, num_bytes))
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=LATE)
        assert answer.status_code == 500
        assert stream.read_last()["error"]["code"] == 500
    assert server.process.wait(SECOND + LATE) == 3
    assert "the engine process ended with the exit code 3" in server.read_log()
    assert not engine.is_running()


@pytest.fixture(scope="module")
def plain_server(start_server: Start, model_folder: Path) -> Any:
    """A server without plug-ins, which may import torch, in a new interpreter."""
    return start_server(
        *(str(model_folder), "--kv-cache-memory", "16MiB"), executable=sys.executable
    )


def test_the_servers_process_imports_neither_torch_nor_transformers(
    plain_server: Any,
) -> None:
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "logprobs": True,
        "stop": ["zzz"],
    }
    answer = httpx.post(f"{plain_server.url}/v1/chat/completions", json=chat)
    assert answer.status_code == 200
    for body in ({"prompt": "Hi"}, {"messages": chat["messages"]}):
        answer = httpx.post(f"{plain_server.url}/tokenize", json=body)
        assert answer.status_code == 200
    # transformers maps no library of its own, and imports torch.
    assert "libtorch" not in plain_server.list_libraries()
    engine = find_engine(plain_server.process)
    assert any("libtorch" in each.path for each in engine.memory_maps())


@pytest.mark.usefixtures("no_shared_memory_left")
def test_a_killed_server_leaves_no_engine(plain_server: Any) -> None:
    """This is the last test that uses the server."""
    engine = find_engine(plain_server.process)
    with open_stream(plain_server.url):
        plain_server.process.kill()
        wait_gone(engine)
    assert not engine.is_running()


def test_progressz_answers_503_while_the_engine_is_stopped(server: Any) -> None:
    def read_progress() -> int:
        status: int = httpx.get(f"{server.url}/progressz").status_code
        return status

    engine = find_engine(server.process)
    assert read_progress() == 200
    engine.send_signal(signal.SIGSTOP)
    wait_until(lambda: read_progress() == 503)
    assert httpx.get(f"{server.url}/health").status_code == 200
    engine.send_signal(signal.SIGCONT)
    wait_until(lambda: read_progress() == 200)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"


@pytest.mark.parametrize("killed", ["engine", "server"])
def test_a_process_killed_during_the_load_ends_the_other_one(
    model_folder: Path, killed: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "trioserve", "serve", str(model_folder), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        wait_until(lambda: bool(list_engines(process)))
        [engine] = list_engines(process)
        (engine if killed == "engine" else psutil.Process(process.pid)).kill()
        code = process.wait(SECOND + LATE)
        wait_gone(engine)
        assert process.stderr is not None
        log = process.stderr.read()
    assert code == (3 if killed == "engine" else -signal.SIGKILL)
    assert ("was ended by SIGKILL" in log) == (killed == "engine")
    assert "EngineProcessDied" not in log


def list_children() -> set[psutil.Process]:
    return set(psutil.Process().children())


async def test_a_program_learns_of_the_death_of_its_idle_engine(
    model_folder: Path,
) -> None:
    """Until then, the engine process answers requests like an engine in the program."""
    before = list_children()
    with pytest.raises(EngineDied) as caught:
        async with trioserve.open_engine(
            str(model_folder), process=True, kv_cache_memory="16MiB"
        ) as engine:
            [child] = list_children() - before
            fresh = engine.engine.statistics()
            async with engine.open_completion(
                "Once", max_tokens=20, ignore_eos=True
            ) as one:
                [text] = await one.collect()
            assert len(text.token_ids) == 20
            with trio.fail_after(180):
                while engine.engine.statistics() != fresh:
                    await trio.sleep(0.01)
            child.kill()
            with trio.fail_after(SECOND + LATE):
                await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, EngineProcessDied)
    assert not engine.engine.is_alive
    assert not child.is_running()


async def test_a_wrong_model_raises_the_same_error_as_without_a_process() -> None:
    before = list_children()
    with pytest.raises(WeightsNotFound, match="/no/such/folder"):
        async with trioserve.open_engine("/no/such/folder", process=True):
            raise AssertionError("there is no model")
    assert list_children() == before
