"""Two replicas behind a real nginx lose no request while each is restarted.

Their processes, signals and HTTP are real, and only their device is a fake (replica.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
from typing import Any

import httpx2 as httpx
import pytest
from server_process import LONG, begin_process
import trio
from warm_start import FORK

pytestmark = pytest.mark.slow

REPLICA = (*FORK, str(Path(__file__).with_name("replica.py")))

PATH = "/v1/completions"
NUM_CLIENTS, NUM_AT_ONCE, NUM_TOKENS = 4, 8, 30
SECONDS = 240

# Without it, clients and replicas would take the processor from the start of a replica.
PAUSE_SECONDS = 0.1

# Behind each change the load goes on until this many more requests have ended.
NUM_MORE = 6


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@dataclass(kw_only=True)
class Load:
    """Clients of nginx that check whether each answer is whole.

    Attributes:
      is_over: whether the clients end after their current requests.
      num_ended: requests that have ended.
      lost: errors and parts that came in place of whole answers.
    """

    client: httpx.AsyncClient
    is_over: bool = False
    num_ended: int = 0
    lost: list[str] = field(default_factory=list)

    async def ask(self, body: dict[str, Any], session: str | None) -> None:
        headers = {} if session is None else {"x-session-id": session}
        answer = await self.client.post(PATH, json=body, headers=headers)
        if not is_whole(answer, body):
            self.lost.append(f"{answer.status_code} {answer.text}")
        self.num_ended += 1

    async def run_client(self, number: int) -> None:
        """Ask one request after another: streamed or not, in a session or not."""
        body = {"prompt": f"Client {number}", "max_tokens": NUM_TOKENS}
        body |= {"ignore_eos": True, "stream": number % 2 == 0}
        session = f"session {number}" if number // 2 % 2 else None
        while not self.is_over:
            await self.ask(body, session)
            await trio.sleep(PAUSE_SECONDS)

    async def ask_many(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(NUM_AT_ONCE):
                body = {"prompt": "Now", "max_tokens": 2, "stream": number % 2 == 0}
                nursery.start_soon(self.ask, body | {"ignore_eos": True}, str(number))

    async def go_on(self) -> None:
        """Wait for the ends of more requests."""
        until = self.num_ended + NUM_MORE
        while self.num_ended < until:
            await trio.sleep(0.02)


def is_whole(answer: httpx.Response, body: dict[str, Any]) -> bool:
    if answer.status_code != 200:
        return False
    if not body["stream"]:
        return bool(answer.json()["usage"]["completion_tokens"] == body["max_tokens"])
    lines = [line for line in answer.text.splitlines() if line]
    last = json.loads(lines[-2].removeprefix("data: "))
    return (
        lines[-1] == "data: [DONE]" and last["choices"][0]["finish_reason"] == "length"
    )


async def test_no_request_is_lost_while_replicas_are_restarted(
    tokenizer_folder: Path, stack: ExitStack, open_nginx: Any, choose_port: Any
) -> None:
    ports = [choose_port(), choose_port()]

    async def start(port: int, before: Sequence[str] = ()) -> Any:
        command = [*before, *REPLICA, str(tokenizer_folder), "--port", str(port)]
        wait = begin_process(stack, command)
        return await trio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def stop(replica: Any) -> None:
        """Send SIGTERM while a stream runs, and ask much during the drain."""
        async with trio.open_nursery() as nursery:
            await nursery.start(read_long_stream, replica.url)
            os.kill(find_server(replica.process.pid), signal.SIGTERM)
            nursery.start_soon(load.ask_many)
        code = await trio.to_thread.run_sync(
            replica.process.wait, abandon_on_cancel=True
        )
        assert code == 0

    with trio.fail_after(SECONDS):
        nginx = stack.enter_context(open_nginx(ports))
        first = await start(ports[0])
        async with (
            httpx.AsyncClient(
                base_url=nginx.url, verify=nginx.tls, timeout=SECONDS
            ) as client,
            trio.open_nursery() as nursery,
        ):
            load = Load(client=client)
            for number in range(NUM_CLIENTS):
                nursery.start_soon(load.run_client, number)
            # The second replica is not there yet, as in the middle of its restart.
            await load.go_on()
            second = await start(ports[1], find_unshare())
            await load.go_on()
            await stop(first)
            await load.go_on()
            await start(ports[0])
            await load.go_on()
            await stop(second)
            await load.go_on()
            load.is_over = True
    assert not load.lost


def find_unshare() -> list[str]:
    """Return the command before one that shall be process 1, as in a container.

    The kernel drops signals for a process 1 that has not asked for them. Where the machine
    does not allow it, the server is a process as any other.
    """
    program = shutil.which("unshare")
    if program is None:
        return []
    command = [program, "--pid", "--fork", "--kill-child"]
    allowed = subprocess.call([*command, "true"], stderr=subprocess.DEVNULL) == 0
    return command if allowed else []


def find_server(pid: int) -> int:
    """Return the process behind unshare, or the process itself."""
    if "unshare" not in Path(f"/proc/{pid}/comm").read_text():
        return pid
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def read_long_stream(
    url: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Read a stream to its end; it tells when the first event has come."""
    lines = []
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        async with client.stream("POST", f"{url}{PATH}", json=LONG) as answer:
            async for line in answer.aiter_lines():
                if not lines:
                    task_status.started()
                lines.append(line)
    assert "data: [DONE]" in lines
