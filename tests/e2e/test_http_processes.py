"""Several HTTP processes on one engine process, whose device is a fake.

No process imports torch, so a server starts in some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import BadStatusLine, HTTPConnection, HTTPResponse, IncompleteRead
import json
from pathlib import Path
import signal
import subprocess
import time
from typing import Any

import httpx2 as httpx
import openai
import psutil
import pytest
from server_process import ServerProcess, begin_process
from warm_start import FORK

from trioserve.testing.supervisor_process import make_folder

pytestmark = pytest.mark.slow

LATE = 20.0

KEYS = "ann sk-ann\nbob sk-bob max_requests=1\nroot sk-root admin\n"

# More than a test takes.
LONG = 1900


class Server:
    """A server with two HTTP processes."""

    def __init__(self, started: ServerProcess) -> None:
        self.started = started
        self.process = psutil.Process(started.process.pid)

    def list_children(self, module: str) -> list[psutil.Process]:
        return [each for each in self.process.children() if module in name(each)]

    @property
    def processes(self) -> list[psutil.Process]:
        return self.list_children("http_process")

    @contextmanager
    def connect(self, process: psutil.Process) -> Iterator[HTTPConnection]:
        """Open connections until an HTTP process has accepted one."""
        with ExitStack() as stack:
            while True:
                connection = HTTPConnection(
                    "127.0.0.1", self.started.port, timeout=LATE
                )
                stack.callback(connection.close)
                ask(connection, "GET", "/livez")
                port = connection.sock.getsockname()[1]
                if port in {
                    each.raddr.port for each in process.net_connections() if each.raddr
                }:
                    yield connection
                    return


def name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def ask(
    connection: HTTPConnection, method: str, path: str, key: str = "ann", **body: object
) -> Any:
    """Send a request; returns the status and the answer's JSON or text."""
    answer = begin(connection, method, path, key, **body)
    text = answer.read().decode()
    is_json = answer.headers.get("Content-Type", "") == "application/json"
    return answer.status, json.loads(text) if is_json else text


def begin(
    connection: HTTPConnection, method: str, path: str, key: str, **body: object
) -> HTTPResponse:
    headers = {"Authorization": f"Bearer sk-{key}", "Content-Type": "application/json"}
    content = json.dumps(body) if body else None
    connection.request(method, path, content, headers)
    return connection.getresponse()


def begin_stream(
    connection: HTTPConnection, key: str = "ann", max_tokens: int = LONG
) -> HTTPResponse:
    """Begin a stream, and wait for its first event."""
    body: dict[str, object] = {"prompt": "Hi", "max_tokens": max_tokens, "stream": True}
    answer = begin(connection, "POST", "/v1/completions", key, **body)
    assert answer.status == 200
    assert answer.readline().startswith(b"data: ")
    return answer


def complete(connection: HTTPConnection, key: str = "ann") -> int:
    """Return the status of a completion."""
    body: dict[str, object] = {"prompt": "Hi", "max_tokens": 2}
    status: int = ask(connection, "POST", "/v1/completions", key, **body)[0]
    return status


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LATE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"


MODULE = "trioserve.testing.supervisor_process"


# Ends HTTP processes that say nothing for three seconds, and those that do not drain sooner.
IMPATIENT = f"""
import sys
from trioserve.startup import supervisor
from {MODULE} import main
supervisor.Supervisor.max_silent_seconds = 3
supervisor._AFTER_DRAIN_SECONDS = 1.0
sys.exit(main())
"""


def write_command(folder: Path, keys: Path, *how: str, **changed: object) -> list[str]:
    options: dict[str, object] = {
        **{"model": str(folder), "port": 0, "api_processes": 2},
        **{"response_max_age": 0, "max_background_responses": 0},
        **{"api_key_file": str(keys)},
    }
    how = how or ("-m", MODULE)
    return [*FORK, *how, json.dumps(options | changed)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Servers that start together.

    For most tests, for a dead engine, for two signals, and for HTTP processes that stop.
    """
    folder = tmp_path_factory.mktemp("processes")
    make_folder(folder)
    (folder / "keys").write_text(KEYS)
    keys = folder / "keys"
    commands = [write_command(folder, keys)] * 3
    commands.append(write_command(folder, keys, "-c", IMPATIENT))
    commands.append(write_command(folder, keys, "-c", IMPATIENT, drain_timeout=0.5))
    with ExitStack() as stack:
        waits = [begin_process(stack, command) for command in commands]
        yield [Server(wait()) for wait in waits]


@pytest.fixture
def server(servers: list[Server]) -> Server:
    return servers[0]


@pytest.fixture
def connections(server: Server) -> Iterator[list[HTTPConnection]]:
    """A connection to each of the HTTP processes."""
    wait_until(lambda: len(server.processes) == 2)
    with ExitStack() as stack:
        yield [stack.enter_context(server.connect(each)) for each in server.processes]


def test_each_http_process_answers_the_official_client(server: Server) -> None:
    served: set[int] = set()
    while len(served) < 2:
        with openai.OpenAI(
            base_url=f"{server.started.url}/v1", api_key="sk-ann", max_retries=0
        ) as client:
            raw = client.completions.with_raw_response.create(
                model="fake", prompt="Hi", max_tokens=9
            )
            assert raw.parse().choices[0].text.startswith("The quick")
            stream = raw.http_response.extensions["network_stream"]
            port = stream.get_extra_info("client_addr")[1]
            served |= {
                each.pid
                for each in server.processes
                if any(c.raddr and c.raddr.port == port for c in each.net_connections())
            }


def test_all_http_processes_agree_on_the_sleep_of_the_engine(
    connections: list[HTTPConnection],
) -> None:
    here, there = connections
    stream = begin_stream(there)
    assert ask(here, "POST", "/sleep?level=2", "root")[0] == 200
    assert "asleep by order" in stream.read().decode()
    for connection in connections:
        wait_until(
            lambda: ask(connection, "GET", "/is_sleeping")[1] == {"is_sleeping": True}
        )
        assert complete(connection) == 503
        assert ask(connection, "GET", "/readyz")[0] == 503
    assert "trioserve_sleep_level 2.0" in ask(here, "GET", "/metrics")[1]
    assert ask(there, "POST", "/wake_up", "root")[0] == 200
    for connection in connections:
        wait_until(lambda: complete(connection) == 200)


def test_a_http_process_shows_and_cancels_the_requests_of_another_one(
    connections: list[HTTPConnection],
) -> None:
    here, there = connections
    stream = begin_stream(there)
    status, listed = ask(here, "GET", "/v1/requests")
    [card] = listed["data"]
    assert (status, card["key"], card["phase"]) == (200, "ann", "decode")
    path = f"/v1/requests/{card['id']}"
    [details] = ask(here, "GET", path)[1]["data"]
    assert details["kv_blocks"] > 0 and details["task"]["awaits"]
    # Another client may not see it.
    assert ask(here, "GET", path, "bob")[0] == 404
    assert ask(here, "GET", "/v1/requests", "bob")[1]["data"] == []
    metrics = ask(here, "GET", "/metrics")[1]
    assert 'trioserve_key_requests_running{key="ann"} 1.0' in metrics
    assert "trioserve_num_requests_open 1.0" in metrics
    # The engine tells processes without requests of their own a moment later.
    running = "trioserve_num_requests_running 1.0"
    wait_until(lambda: running in ask(here, "GET", "/metrics")[1])
    [card] = ask(here, "DELETE", path)[1]["data"]
    assert "cancelled" in stream.read().decode()
    assert ask(here, "GET", path)[0] == 404


def test_the_limit_of_a_key_holds_for_all_http_processes(
    connections: list[HTTPConnection],
) -> None:
    here, there = connections
    begin_stream(there, "bob")
    assert complete(here, "bob") == 429
    assert complete(here, "ann") == 200
    there.close()
    wait_until(lambda: complete(here, "bob") == 200)
    assert complete(here, "bob") == 200


def test_all_http_processes_read_the_keys_again(
    server: Server, connections: list[HTTPConnection]
) -> None:
    [argument] = [each for each in server.process.cmdline() if each.startswith("{")]
    path = Path(json.loads(argument)["api_key_file"])
    assert [complete(each, "cid") for each in connections] == [401, 401]
    path.write_text(KEYS + "cid sk-cid\n")
    server.process.send_signal(signal.SIGHUP)
    for each in connections:
        wait_until(lambda: complete(each, "cid") == 200)


def test_a_http_process_that_is_killed_costs_its_own_requests_and_is_replaced(
    server: Server, connections: list[HTTPConnection]
) -> None:
    here, there = connections
    other, process = server.processes
    lost, kept = begin_stream(there), begin_stream(here, max_tokens=600)
    assert (
        "_num_requests_running 2.0" in httpx.get(f"{server.started.url}/metrics").text
    )
    process.kill()
    with pytest.raises((IncompleteRead, ConnectionError)):
        lost.read()
    # The engine has dropped its request, and the other one goes on.
    assert kept.read().endswith(b"data: [DONE]\n\n")
    wait_until(lambda: "_used_blocks 0.0" in ask(here, "GET", "/metrics")[1])
    assert ask(here, "GET", "/v1/requests")[1]["data"] == []
    wait_until(lambda: len(server.processes) == 2 and process not in server.processes)
    [successor] = {*server.processes} - {other}
    # The first connection was idle for too long.
    with server.connect(successor) as new, server.connect(other) as here:
        assert complete(new) == 200
        # It has learned of the work of others.
        stream = begin_stream(here, "bob")
        assert complete(new, "bob") == 429
        stream.close()
        here.close()


def test_sigterm_drains_all_http_processes(
    server: Server, connections: list[HTTPConnection]
) -> None:
    """This is the last test that uses the server."""
    with server.connect(server.processes[0]) as idle:
        streams = [begin_stream(each, max_tokens=600) for each in connections]
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: ask(idle, "GET", "/health")[0] == 503)
        for stream in streams:
            assert stream.read().endswith(b"data: [DONE]\n\n")
    assert server.started.process.wait(LATE) == 0
    log = server.started.read_log()
    assert "was ended by SIGKILL" in log and "another one begins" in log
    assert "Traceback" not in log


def test_a_killed_engine_gives_every_client_an_error_and_ends_the_server(
    servers: list[Server],
) -> None:
    server = servers[1]
    children = server.list_children("trioserve")
    [engine] = server.list_children("engine_process")
    with ExitStack() as stack:
        streams = [
            begin_stream(stack.enter_context(server.connect(each)))
            for each in server.processes
        ]
        engine.kill()
        for stream in streams:
            *_, error, done = stream.read().decode().strip().split("\n\n")
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == 500
            assert done == "data: [DONE]"
    assert server.started.process.wait(LATE) == 3
    log = server.started.read_log()
    assert "so the server ends: the engine process was ended by SIGKILL" in log
    assert "Traceback" not in log
    assert not any(each.is_running() for each in children)


def test_a_second_signal_ends_all_processes_at_once(servers: list[Server]) -> None:
    server = servers[2]
    children = server.list_children("trioserve")
    with ExitStack() as stack:
        for each in server.processes:
            begin_stream(stack.enter_context(server.connect(each)))
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.started.url}/health").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.started.process.wait(LATE) == 128 + signal.SIGTERM
    assert not any(each.is_running() for each in children)


def test_a_http_process_that_has_stopped_is_replaced(servers: list[Server]) -> None:
    server = servers[3]
    process, other = server.processes
    with server.connect(other) as here, server.connect(process) as there:
        process.suspend()
        kept = begin_stream(here, max_tokens=600)
        there.request("GET", "/livez")
        with pytest.raises((BadStatusLine, ConnectionError)):
            there.getresponse()
        wait_until(
            lambda: len(server.processes) == 2 and process not in server.processes
        )
        [successor] = {*server.processes} - {other}
        assert kept.read().endswith(b"data: [DONE]\n\n")
    with server.connect(successor) as connection:
        assert complete(connection) == 200
    # The next successor has not begun to serve. A stop does not wait for that.
    other.kill()
    wait_until(lambda: len(server.processes) == 2 and other not in server.processes)
    server.process.terminate()
    assert server.started.process.wait(LATE) == 0
    log = server.started.read_log()
    assert "ended by SIGKILL" in log
    assert "said nothing for 3 s; its requests are lost, and another one begins" in log


def test_a_http_process_that_has_stopped_does_not_hold_a_stop_up(
    servers: list[Server],
) -> None:
    server = servers[4]
    children = server.list_children("trioserve")
    server.processes[0].suspend()
    server.process.terminate()
    assert server.started.process.wait(LATE) == 0
    assert "have not drained, and are ended" in server.started.read_log()
    assert not any(each.is_running() for each in children)


def test_a_mistake_that_http_processes_find_is_told_in_a_sentence(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "wrong"
    keys.write_text("ann\n")
    command = write_command(make_folder(tmp_path), keys)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "InvalidConfig: --api-key-file: line 1" in done.stderr
    assert "the engine failed" not in done.stderr
