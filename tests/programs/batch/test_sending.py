"""A refused request waits as long as the server asks, and is sent again, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
import io
import json
import sys

import pytest
import trio
import trio.testing

from trioserve.programs.batch.askers import ServerGone
from trioserve.programs.batch.lines import InputLine
from trioserve.programs.batch.progress import BatchProgress, Waits
from trioserve.programs.batch.record import Done, ErrorPart, OutputLine
from trioserve.programs.batch.request import BatchRequest, LineRefused, read_request
from trioserve.programs.batch.sending import Sender, Slots
from trioserve.programs.http.client import HttpAnswer

REQUEST = BatchRequest(
    line=InputLine(number=1, text=b"{}", digest=1),
    custom_id="a",
    path="/v1/completions",
    body=b"{}",
)


def make_answer(status: int, body: bytes = b"{}", **fields: str) -> HttpAnswer:
    pairs = [
        (name.replace("_", "-").encode(), v.encode()) for name, v in fields.items()
    ]
    return HttpAnswer(status=status, fields=tuple(pairs), body=body)


class ScriptedServer:
    """Gives one answer after the other, and the last one again and again."""

    def __init__(self, script: Sequence[HttpAnswer | Exception]) -> None:
        self._script = [*script]
        self.times: list[float] = []
        self.is_gone = False

    async def post(self, target: str, body: bytes) -> HttpAnswer:
        await trio.lowlevel.checkpoint()
        self.times.append(trio.current_time())
        answer = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def check(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_gone:
            raise ServerGone("no server answers")


async def send(server: ScriptedServer, waits: Waits | None = None) -> OutputLine:
    sender = Sender(server, Slots(8), server.check, waits or Waits())
    return await sender.send(REQUEST)


async def test_an_answer_becomes_a_line(autojump_clock: trio.abc.Clock) -> None:
    server = ScriptedServer([make_answer(200, b'{"a": 1}', x_request_id="r")])
    line = json.loads((await send(server)).encode())
    assert line == {
        "id": "batch_req_1_0000000000000001",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r", "body": {"a": 1}},
        "error": None,
    }


async def test_retry_after_is_obeyed(autojump_clock: trio.abc.Clock) -> None:
    refusals = [make_answer(429, retry_after="30"), make_answer(503, retry_after="7")]
    server = ScriptedServer([*refusals, make_answer(200)])
    assert not (await send(server)).has_failed
    first, second, third = server.times
    assert second - first >= 30 and third - second >= 7


async def test_a_request_that_is_always_refused_fails(
    autojump_clock: trio.abc.Clock,
) -> None:
    line = await send(ScriptedServer([make_answer(429)]))
    assert line.response is not None and line.response.status_code == 429


@pytest.mark.parametrize("status", [400, 404, 422, 504])
async def test_an_error_of_the_line_is_final(
    autojump_clock: trio.abc.Clock, status: int
) -> None:
    server = ScriptedServer([make_answer(status), make_answer(200)])
    line = await send(server)
    assert line.response is not None and line.response.status_code == status


@pytest.mark.parametrize("fault", [make_answer(500), OSError("reset")])
async def test_a_fault_that_passes_is_no_failure(
    autojump_clock: trio.abc.Clock, fault: HttpAnswer | Exception
) -> None:
    assert not (await send(ScriptedServer([fault, fault, make_answer(200)]))).has_failed


async def test_a_line_that_ends_its_connection_fails_alone(
    autojump_clock: trio.abc.Clock,
) -> None:
    line = await send(ScriptedServer([OSError("reset")]))
    assert line.error is not None and line.error.message == "reset"


async def test_a_server_that_is_gone_ends_the_batch(
    autojump_clock: trio.abc.Clock,
) -> None:
    server = ScriptedServer([OSError("refused")])
    server.is_gone = True
    with pytest.raises(ServerGone):
        await send(server)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": \n'])
async def test_an_answer_that_is_no_json_is_an_error(
    autojump_clock: trio.abc.Clock, body: bytes
) -> None:
    line = await send(ScriptedServer([make_answer(200, body)]))
    assert line.error is not None and "not JSON" in line.error.message


async def test_an_answer_takes_one_line(autojump_clock: trio.abc.Clock) -> None:
    line = await send(ScriptedServer([make_answer(200, b'{\n "a": "b\\nc"\n}')]))
    assert line.encode().count(b"\n") == 1
    assert json.loads(line.encode())["response"]["body"] == {"a": "b\nc"}


async def test_a_full_server_gets_fewer_requests_and_then_more(
    autojump_clock: trio.abc.Clock,
) -> None:
    slots = Slots(16)

    async def ask(status: int) -> None:
        async def post() -> HttpAnswer:
            await trio.sleep(1)
            return make_answer(status)

        await slots.run(post)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(ask, 429)
    # Requests that were sent together are refused together, and count once.
    assert slots.num_tokens == 8
    for _ in range(8):
        await ask(200)
    assert slots.num_tokens == 9
    for _ in range(10):
        await ask(503)
    assert slots.num_tokens == 1


async def test_a_key_that_is_refused_later_ends_the_batch(
    autojump_clock: trio.abc.Clock,
) -> None:
    with pytest.raises(ServerGone, match="key"):
        await send(ScriptedServer([make_answer(401)]))


async def test_a_server_cannot_make_a_batch_wait_for_days(
    autojump_clock: trio.abc.Clock,
) -> None:
    server = ScriptedServer([make_answer(429, retry_after="999999"), make_answer(200)])
    await send(server)
    assert server.times[1] - server.times[0] <= 60


async def test_a_deeply_nested_answer_is_an_error(
    autojump_clock: trio.abc.Clock,
) -> None:
    line = await send(ScriptedServer([make_answer(200, b"\n" + b"[" * 100_000)]))
    assert line.error is not None and "not JSON" in line.error.message


def test_a_deeply_nested_line_is_refused() -> None:
    body = b"[" * 100_000 + b"]" * 100_000
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": %b}' % body
    with pytest.raises(LineRefused):
        read_request(InputLine(number=1, text=text, digest=1))


async def test_a_servers_message_cannot_command_the_terminal() -> None:
    progress = BatchProgress(Done(), None, Waits())
    progress.take(
        OutputLine(
            id="x", custom_id="a", response=None, error=ErrorPart("c", "\x1b[2J")
        )
    )
    progress.close()
    assert "\x1b" not in progress.describe()


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (make_answer(429, retry_after="30"), "a request waits 30 s: HTTP 429"),
        (
            make_answer(
                503, b'{"error": "\x1b[2J' + b"x" * 99 + b'"}', retry_after="9"
            ),
            f"a request waits 9 s: HTTP 503: \\x1b[2J{'x' * 40}...",
        ),
        # A server that asks for more is asked after a minute.
        (make_answer(429, retry_after="7000"), "a request waits 60 s: HTTP 429"),
        (make_answer(500), "a request waits 1 s: HTTP 500"),
        (OSError("reset"), "a request waits 1 s: no answer, reset"),
    ],
)
async def test_a_wait_is_told(
    autojump_clock: trio.abc.Clock, first: HttpAnswer | Exception, text: str
) -> None:
    waits = Waits()
    server = ScriptedServer([first, make_answer(200)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, server, waits)
        await trio.testing.wait_all_tasks_blocked()
        assert waits.describe() == text
    assert waits.describe() == ""


async def test_the_next_of_several_waits_is_told(
    autojump_clock: trio.abc.Clock,
) -> None:
    waits = Waits()
    with waits.count(40, "HTTP 429"), waits.count(20, "HTTP 503"):
        assert waits.describe() == "2 wait, the next for 20 s: HTTP 503"
        await trio.sleep(11.5)
        assert waits.describe() == "2 wait, the next for 9 s: HTTP 503"


async def test_the_bar_shows_a_wait(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "150")
    waits = Waits()
    progress = BatchProgress(Done(), 3, waits)
    with waits.count(4, "HTTP 429: the key has reached its limit"):
        with trio.move_on_after(2.1):
            await progress.run()
    progress.close()
    text = terminal.getvalue()
    for seconds in (4, 3, 2):
        assert (
            f"a request waits {seconds} s: HTTP 429: the key has reached its limit"
            in text
        )
    assert "waits" not in text.rpartition("\r")[2]
