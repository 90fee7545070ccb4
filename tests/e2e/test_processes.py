"""Real processes and real signals: start, stop, kill, and clients that leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import json
from pathlib import Path
import random
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import httpx2 as httpx
import pytest
from server_process import (
    END_SECONDS,
    LONG,
    SERVE,
    START_SECONDS,
    begin_process,
    open_stream,
)
import trio
from warm_start import FORK

from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer

pytestmark = pytest.mark.slow

# Waits until a server is ready; several servers start at the same time.
Wait = Callable[[], Any]

# These tests need no engine process, which takes seconds to import torch.
# test_engine_process.py has the tests that need one.
INSIDE = "--no-engine-process"


def request_of(body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
    )


def read_gauges(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics", timeout=END_SECONDS).text
    names = (
        *("num_requests_open", "num_requests_running", "num_requests_waiting"),
        "kv_cache_used_blocks",
    )
    gauges = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.removeprefix("trioserve_") in names:
            gauges[name] = float(value)
    assert len(gauges) == len(names)
    return gauges


async def test_streams_that_end_at_random_leave_a_fresh_engine(server: Any) -> None:
    fresh = read_gauges(server.url)
    assert set(fresh.values()) == {0.0}
    rng = random.Random(1)

    async def run(number: int) -> None:
        await trio.sleep(rng.uniform(0, 0.8))
        body = LONG | {"prompt": f"Stream {number} " * rng.randint(1, 20)}
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with stream:
            await stream.send_all(request_of(body))
            with trio.move_on_after(rng.expovariate(2)):
                while await stream.receive_some():
                    pass

    with trio.fail_after(180):
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(run, number)
        while await trio.to_thread.run_sync(read_gauges, server.url) != fresh:
            await trio.sleep(0.05)


@pytest.fixture(scope="module")
def drained(model_folder: Path) -> Iterator[dict[str, Wait]]:
    """Servers for the tests to stop, one for each test."""
    options = {
        "unread": ["--drain-timeout", "0.5"],
        "full": ["--max-num-seqs", "2"],
        "streaming": [],
    }
    serve = [*SERVE, str(model_folder), INSIDE, "--port", "0"]
    serve += ["--kv-cache-memory", "64MiB"]
    with ExitStack() as stack:
        yield {
            name: begin_process(stack, [*serve, *more])
            for name, more in options.items()
        }


def test_a_client_that_never_reads_cannot_hold_up_the_exit(
    drained: dict[str, Wait],
) -> None:
    server = drained["unread"]()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Logprobs make events long, so that the kernel's buffers fill.
        body = LONG | {"logprobs": 20, "n": 32}
        connection.sendall(request_of(body))
        while read_gauges(server.url)["trioserve_num_requests_running"] == 0:
            pass
        assert server.stop(signal.SIGTERM) == 0


def test_a_second_signal_cuts_the_drain(drained: dict[str, Wait]) -> None:
    server = drained["full"]()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_of(LONG | {"n": 100}))
        while read_gauges(server.url)["trioserve_num_requests_running"] == 0:
            pass
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/health").status_code == 200:
            pass
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    # The request for the metrics may still be open.
    log = server.read_log()
    assert re.search(r"draining \(open requests: [12]\); another signal", log)


def test_sigusr1_logs_the_stalls_of_the_loop_and_a_drain_lets_a_stream_end(
    drained: dict[str, Wait],
) -> None:
    """test_pooling.py tests a server without streams, and SIGINT."""
    server = drained["streaming"]()

    def count_lines() -> int:
        return sum("task steps, longest" in line for line in server.log)

    for number in (1, 2):
        server.process.send_signal(signal.SIGUSR1)
        while count_lines() < number:
            assert httpx.get(f"{server.url}/health").status_code == 200
    metrics = httpx.get(f"{server.url}/metrics").text
    assert "trioserve_event_loop_turn_seconds_count" in metrics
    assert "trioserve_task_step_seconds_count 0.0" not in metrics
    # The other connection, which is idle, does not hold up the exit.
    with socket.create_connection(("127.0.0.1", server.port)):
        with open_stream(server.url) as stream:
            server.process.send_signal(signal.SIGTERM)
            last = stream.read_last()
        assert last["choices"][0]["finish_reason"]
        assert server.process.wait(END_SECONDS) == 0
    assert "Traceback" not in server.read_log()
    # The server logs the third line at its end.
    assert count_lines() == 3


def test_an_interrupt_in_the_first_moments_ends_it_without_a_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *SERVE[1:], "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        # msgspec is the first larger library. The other imports take a second.
        while not process.stderr.readline().endswith(" msgspec\n"):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(END_SECONDS) == -signal.SIGINT
        assert "Traceback" not in process.stderr.read()


# Sends SIGTERM just before the server is ready: a garbage collection is its last work
# before it listens.
STOPPED_AS_IT_COLLECTS = """
import gc, os, signal, sys, threading
from trioserve.__main__ import main

def stop(phase, information):
    is_loading = gc.isenabled() or "loads" in threading.current_thread().name
    if phase == "start" and not is_loading:
        os.kill(os.getpid(), signal.SIGTERM)

gc.callbacks.append(stop)
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_just_before_it_is_ready_ends_it_without_serving(
    model_folder: Path,
) -> None:
    serve = ["serve", str(model_folder), INSIDE, "--port", "0"]
    done = subprocess.run(
        [*FORK, "-c", STOPPED_AS_IT_COLLECTS, *serve],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0
    assert "stopped before it was ready" in done.stderr
    for unwanted in ("draining", "ready after"):
        assert unwanted not in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_ends_with_0(model_folder: Path, signum: int) -> None:
    process = subprocess.Popen(
        [*SERVE, str(model_folder), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        # The first line is the configuration, logged just before loading.
        process.stderr.readline()
        process.send_signal(signum)
        assert process.wait(END_SECONDS) == 0


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that takes a while to load."""
    folder = tmp_path_factory.mktemp("models") / "deep"
    save_tiny_model("llama", folder, num_hidden_layers=100)
    return tiny_tokenizer(folder)


def test_a_signal_while_weights_are_read_here_ends_with_0(deep_folder: Path) -> None:
    """A thread inside torch when the interpreter ends would give exit code 134."""
    process = subprocess.Popen(
        [*SERVE, str(deep_folder), INSIDE, "--port", "0"], stderr=subprocess.PIPE
    )
    with process:
        assert process.stderr is not None
        # The weights are mapped into memory while they are read.
        maps = Path(f"/proc/{process.pid}/maps")
        while "model.safetensors" not in maps.read_text():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_SECONDS) == 0
        assert b"terminate" not in process.stderr.read()


def test_a_model_that_is_refused_is_one_sentence_and_exit_code_2(
    model_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command runs in this process, because a new one would import torch first."""
    from trioserve.__main__ import main

    # The other tests of this process need the garbage collector.
    monkeypatch.setattr(
        "trioserve.startup.http_server.prepare_interpreter", lambda: None
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    truncated = tmp_path / "truncated"
    truncated.mkdir()
    for path in model_folder.iterdir():
        content = path.read_bytes()
        is_weights = path.suffix == ".safetensors"
        (truncated / path.name).write_bytes(content[:-100] if is_weights else content)
    unsupported = tmp_path / "unsupported"
    unsupported.mkdir()
    for path in model_folder.iterdir():
        (unsupported / path.name).write_bytes(path.read_bytes())
    (unsupported / "config.json").write_text('{"model_type": "mamba"}')
    wrong: list[list[str]] = [
        ["/no/such/folder"],
        [str(empty)],
        [str(truncated)],
        [str(unsupported)],
        # An option that has no effect on a model that does not generate.
        [str(model_folder), "--task", "embed", "--reasoning-parser", "qwen3"],
    ]
    for arguments in wrong:
        assert main(["serve", *arguments, INSIDE, "--port", "0"]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.splitlines()[-1].startswith("trioserve: ")


HYPERCORN = [*FORK, "-m", "hypercorn", "-k", "trio", "-b", "127.0.0.1:0"]

# hypercorn's command, whose worker is a fork. tests/test_asgi.py has one that is spawned.
FORKING = """
import multiprocessing, sys
from hypercorn import run
from hypercorn.__main__ import main
run.get_context = lambda kind: multiprocessing.get_context("fork")
sys.exit(main())
"""


def create_app_of(model_folder: Path) -> str:
    return (
        f"trioserve.asgi:create_app({str(model_folder)!r},"
        " kv_cache_memory='16MiB', drain_timeout=60.0, engine_process=False)"
    )


@pytest.fixture(scope="module")
def hypercorn_servers(model_folder: Path) -> Iterator[dict[str, Wait]]:
    """Servers that hypercorn's command starts, one for each test."""
    serve = [*HYPERCORN, create_app_of(model_folder)]
    commands = {
        "alone": [*serve, "-w", "0"],
        "worker": [*FORK, "-c", FORKING, *serve[5:], "-w", "1"],
    }
    with ExitStack() as stack:
        waits = {name: begin_process(stack, each) for name, each in commands.items()}
        # A shell ignores it for a script's background processes, which inherit that.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        waits["deaf"] = begin_process(stack, commands["alone"])
        signal.signal(signal.SIGINT, before)
        yield waits


@pytest.mark.parametrize(
    ("name", "signum"),
    [
        ("alone", signal.SIGINT),
        ("worker", signal.SIGTERM),
        # The server listens to SIGTERM even if its parent ignores SIGINT.
        ("deaf", signal.SIGTERM),
    ],
)
def test_hypercorns_command_serves_and_drains(
    hypercorn_servers: dict[str, Wait], name: str, signum: int
) -> None:
    server = hypercorn_servers[name]()
    with open_stream(server.url) as stream:
        if name != "worker":
            server.process.send_signal(signum)
        assert "choices" in stream.read_last()
    if name == "worker":
        server.process.send_signal(signum)
    assert server.process.wait(END_SECONDS) == 0


EMBEDDING = """
import trio
import trioserve

async def main():
    try:
        await generate()
    except LookupError as error:
        print(error.args, error.__context__)

async def generate():
    async with trioserve.open_engine(
        MODEL, kv_cache_memory="16MiB", renderer_processes=1
    ) as engine:
        fresh = engine.engine.statistics()
        async with engine.open_completion("Once", max_tokens=20, temperature=0) as long:
            with trio.move_on_after(5):
                async with engine.open_completion("Two", max_tokens=400) as other:
                    async for delta in other:
                        break
            (text,) = await long.collect()
        while engine.engine.statistics() != fresh:
            await trio.sleep(0.01)
        print(len(text.token_ids), text.finish_reason)
        raise LookupError("the program's own")

trio.run(main)
"""


def test_an_embedded_engine_leaves_nothing_behind(model_folder: Path) -> None:
    script = EMBEDDING.replace("MODEL", repr(str(model_folder)))
    done = subprocess.run(
        [*FORK, "-c", script],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    # The error is in no group: the engine's nursery is hidden from the program.
    assert done.stdout == '20 length\n("the program\'s own",) None\n'


CANCELLING = """
from transformers.utils import logging
import trio
import trioserve

async def main():
    # Everything is imported.
    async with trioserve.open_engine(SMALL, kv_cache_memory="16MiB"):
        pass
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def cancel(make, args, kwargs):
            # The weights are read next, which keeps the load inside torch for a while.
            token.run_sync_soon(scope.cancel)
            return make(*args, **kwargs)

        logging.set_tqdm_hook(cancel)
        # Only the modules of transformers are loaded with a progress bar.
        async with trioserve.open_engine(
            DEEP, kernels="torch", kv_cache_memory="16MiB"
        ):
            raise AssertionError("it was cancelled before")
    print(scope.cancelled_caught)

trio.run(main)
"""


@pytest.mark.usefixtures("with_transformers")
def test_a_program_that_cancels_a_load_ends_with_its_own_exit_code(
    model_folder: Path, deep_folder: Path
) -> None:
    """A thread inside torch when the interpreter ends would give exit code 134."""
    script = CANCELLING.replace("DEEP", repr(str(deep_folder)))
    script = script.replace("SMALL", repr(str(model_folder)))
    done = subprocess.run(
        [*FORK, "-c", script],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


# A device that breaks: the model's runner fails at its 20th step.
BROKEN_DEVICE = """
import sys
import time
from trioserve.model import runner as model

step = model.ModelRunner.step

def break_at_20(self, plan):
    if plan.step_id == 20:
        raise RuntimeError("the device is broken")
    return step(self, plan)

model.ModelRunner.step = break_at_20
"""


RUN = "from {}.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def broken(model_folder: Path) -> Iterator[dict[str, Wait]]:
    """Servers with a device that will break, one for each test."""
    arguments = {
        "trioserve": ["serve", str(model_folder), INSIDE, "--port", "0"],
        "hypercorn": [*HYPERCORN[5:], "-w", "0", create_app_of(model_folder)],
    }
    with ExitStack() as stack:
        yield {
            door: begin_process(
                stack, [*FORK, "-c", BROKEN_DEVICE + RUN.format(door), *each]
            )
            for door, each in arguments.items()
        }


@pytest.mark.parametrize("door", ["trioserve", "hypercorn"])
def test_a_broken_device_tells_every_client_and_ends_with_3(
    broken: dict[str, Wait], door: str
) -> None:
    server = broken[door]()
    with open_stream(server.url) as stream:
        assert stream.read_last()["error"]["code"] == 500
    assert server.process.wait(END_SECONDS) == 3
    assert "the device is broken" in server.read_log()
