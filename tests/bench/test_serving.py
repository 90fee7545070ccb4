"""`trioserve bench serve` reports the right figures for a server with a known output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.__main__ import main
from trioserve.programs.bench.generation.answers import BenchAnswer
from trioserve.programs.bench.generation.figures import (
    Report,
    merge_reports,
    report_level,
)
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.generation.measure import measure, take_turns
from trioserve.programs.bench.generation.table import render_report
from trioserve.programs.bench.measuring.clients import Round
from trioserve.programs.bench.measuring.measured_servers import Server, ServerUnusable
from trioserve.programs.bench.measuring.report import load_reports, save

LOAD = Load(concurrency=(1, 3), requests=6, warmup=2, output_tokens=5, timeout=30.0)

RunAgainst = Callable[..., Awaitable[Report]]


@dataclass
class FakeServer:
    """A server whose answers have exactly `max_tokens` tokens; `bodies` has requests.

    A request with one of the fields `refused` gets 400. With `broken`, every request
    fails but the first one, which learns the dialect. Later requests wait until
    `num_probes_awaited` probes of /health have come.
    """

    refused: frozenset[str] = frozenset()
    gives_usage: bool = True
    broken: str | None = None
    tokens_in_event: int = 1
    closes: bool = False
    has_health: bool = True
    num_probes_awaited: int = 0
    finish_reason: str = "length"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_probes: int = 0
    num_connections: int = 0
    probed: trio.Event = field(default_factory=trio.Event)

    async def answer(self, line: str, body: bytes) -> bytes:
        if body and self.bodies and self.num_probes < self.num_probes_awaited:
            await self.probed.wait()
        if line == "GET /health":
            self.num_probes += 1
            if self.num_probes >= self.num_probes_awaited:
                self.probed.set()
            status = "200 OK" if self.has_health else "404 Not Found"
            return self.write_head(status, length=0)
        if line == "GET /v1/models":
            listed = b'{"data": [{"id": "tiny"}, {"id": "other"}]}'
            return self.write_head("200 OK", length=len(listed)) + listed
        asked = json.loads(body)
        self.bodies.append(asked)
        if self.refused & asked.keys() or (self.broken == "refuse" and self.is_late):
            return self.write_head("400 Bad Request", length=4) + b"what"
        return self.write_head("200 OK") + b"".join(
            b"%x\r\n%s\r\n" % (len(piece), piece)
            for piece in (*self.write_stream(asked), b"")
        )

    @property
    def is_late(self) -> bool:
        return len(self.bodies) > 1

    def write_head(self, status: str, length: int | None = None) -> bytes:
        framing = (
            "Transfer-Encoding: chunked"
            if length is None
            else f"Content-Length: {length}"
        )
        closing = "Connection: close\r\n" if self.closes else ""
        return f"HTTP/1.1 {status}\r\n{framing}\r\n{closing}\r\n".encode()

    def write_stream(self, asked: dict[str, Any]) -> list[bytes]:
        text = [{"delta": {"content": "la"}}]
        num_events = asked["max_tokens"] // self.tokens_in_event
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            *[{"choices": text}] * num_events,
        ]
        if self.broken == "error event" and self.is_late:
            return [write_event({"error": {"message": "the engine died"}})]
        if self.broken == "cut" and self.is_late:
            return [write_event(event) for event in events]
        end = {"delta": {}, "finish_reason": self.finish_reason}
        events.append({"choices": [end]})
        if self.gives_usage and "stream_options" in asked:
            usage = {"completion_tokens": asked["max_tokens"]}
            events.append({"choices": [], "usage": usage})
        return [*map(write_event, events), b"data: [DONE]\n\n"]


def write_event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.fixture
def run_against(listen: Any) -> RunAgainst:
    """Measure one fake server on a real socket."""

    async def run(fake: FakeServer, load: Load = LOAD, num_labels: int = 1) -> Report:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                http = await listen(nursery, fake.answer)
                servers = [
                    Server(label="fake" * number, url=http.url, turn=number)
                    for number in range(1, num_labels + 1)
                ]
                report = await measure(load, servers)
                fake.num_connections = http.num_connections
                nursery.cancel_scope.cancel()
        return report

    return run


async def test_every_request_and_token_is_counted(run_against: RunAgainst) -> None:
    fake = FakeServer()
    report = await run_against(fake)
    (server,) = report.servers
    assert server.model == "tiny"
    assert [level.concurrency for level in server.levels] == [1, 3]
    for level in server.levels:
        assert (level.clients.num_requests, level.clients.num_errors) == (6, 0)
        assert (level.output_tokens, level.tokens_per_request) == (30, 5.0)
        assert level.counted_by == "usage"
        assert level.ttft.count == level.latency.count == 6
        # Five tokens have four gaps; the event that names the role is not a token.
        assert level.itl.count == 6 * 4
    # A request to learn the dialect, two to warm up, and the requests of two levels.
    assert len(fake.bodies) == 1 + 2 + 2 * 6


async def test_health_is_probed_while_requests_run(run_against: RunAgainst) -> None:
    load = replace(LOAD, concurrency=(2,), warmup=0)
    report = await run_against(FakeServer(num_probes_awaited=4), load)
    level = report.servers[0].levels[0]
    # The first of the four checked whether the path exists. The last one may be
    # answered after the requests that waited for it.
    assert level.health.count >= 2
    assert level.clients.num_health_failures == 0


async def test_a_server_without_health_is_measured_without_it(
    run_against: RunAgainst,
) -> None:
    fake = FakeServer(has_health=False)
    report = await run_against(fake)
    assert fake.num_probes == 1
    assert [level.health for level in report.servers[0].levels] == [None, None]


async def test_a_client_keeps_its_connection(run_against: RunAgainst) -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, concurrency=(1,), warmup=0))
    # One connection to learn the dialect, one of the client, one of the probes.
    assert fake.num_connections == 3


async def test_a_server_that_closes_every_connection_is_measured_too(
    run_against: RunAgainst,
) -> None:
    report = await run_against(FakeServer(closes=True))
    assert [level.clients.num_errors for level in report.servers[0].levels] == [0, 0]


async def test_no_prompt_is_sent_twice(run_against: RunAgainst) -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, rounds=2))
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt.split()) for prompt in prompts} == {LOAD.input_words}


async def test_a_shared_prefix_is_the_only_thing_shared(
    run_against: RunAgainst,
) -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, shared_prefix_words=7, input_words=20))
    prompts = [body["messages"][0]["content"].split() for body in fake.bodies]
    assert len({tuple(prompt[:7]) for prompt in prompts}) == 1
    assert len({tuple(prompt[7:]) for prompt in prompts}) == len(prompts)
    assert {len(prompt) for prompt in prompts} == {27}


async def test_a_server_measured_against_itself_gets_no_prompt_twice(
    run_against: RunAgainst,
) -> None:
    fake = FakeServer()
    await run_against(fake, num_labels=2)
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(set(prompts)) == len(prompts) == 2 * 15


async def test_the_completions_endpoint_sends_a_prompt(run_against: RunAgainst) -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, endpoint="completions"))
    assert all("prompt" in body and "messages" not in body for body in fake.bodies)


@pytest.mark.parametrize(
    ("refused", "counted_by"),
    [({"ignore_eos"}, "usage"), ({"ignore_eos", "stream_options"}, "events")],
)
async def test_fields_that_a_server_refuses_are_left_out(
    run_against: RunAgainst, refused: set[str], counted_by: str
) -> None:
    report = await run_against(FakeServer(refused=frozenset(refused)))
    assert not report.servers[0].has_ignore_eos
    for level in report.servers[0].levels:
        assert (level.clients.num_errors, level.output_tokens) == (0, 30)
        assert level.counted_by == counted_by


async def test_tokens_are_counted_from_events_if_there_is_no_usage(
    run_against: RunAgainst,
) -> None:
    report = await run_against(FakeServer(gives_usage=False))
    level = report.servers[0].levels[0]
    assert (level.counted_by, level.output_tokens) == ("events", 30)
    assert "tokens counted by events" in render_report(report)


async def test_several_tokens_in_an_event_are_reported(run_against: RunAgainst) -> None:
    load = replace(LOAD, output_tokens=6)
    report = await run_against(FakeServer(tokens_in_event=2), load)
    level = report.servers[0].levels[0]
    assert (level.output_tokens, level.tokens_per_event) == (36, 2.0)
    assert level.itl.count == 6 * 2
    assert "compare TPOT, not ITL" in render_report(report)


async def test_answers_that_were_ended_early_are_reported(
    run_against: RunAgainst,
) -> None:
    report = await run_against(FakeServer(finish_reason="repetition"))
    assert report.servers[0].levels[0].num_repeating == 6
    assert "6 answers ended early: they repeated themselves" in render_report(report)
    assert "repeated" not in render_report(await run_against(FakeServer()))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("refuse", "HTTP 400: what"),
        ("error event", "the engine died"),
        ("cut", "the stream ended early"),
    ],
)
async def test_failed_requests_are_counted_and_reported(
    run_against: RunAgainst, broken: str, message: str
) -> None:
    load = replace(LOAD, concurrency=(3,), requests=3, warmup=0)
    report = await run_against(FakeServer(broken=broken), load)
    level = report.servers[0].levels[0]
    assert (level.clients.num_requests, level.clients.num_errors) == (0, 3)
    assert report.list_failed() == ["fake"]
    assert message in render_report(report)


async def test_a_server_that_cannot_be_reached_is_named() -> None:
    servers = [Server(label="gone", url="http://127.0.0.1:1")]
    with pytest.raises(ServerUnusable, match="gone"):
        await measure(LOAD, servers)


async def test_a_server_that_never_answers_ends_with_the_time_limit() -> None:
    async def ignore(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, ignore, listeners)
            port = listeners[0].socket.getsockname()[1]
            servers = [Server(label="mute", url=f"http://127.0.0.1:{port}")]
            report = await measure(replace(LOAD, timeout=0.05), servers)
            nursery.cancel_scope.cancel()
    assert report.is_cut
    assert report.servers == ()
    assert "cut short by --timeout" in render_report(report)


async def test_a_duration_bounds_a_level_instead_of_a_count(
    run_against: RunAgainst,
) -> None:
    load = replace(LOAD, requests=None, duration=0.05, concurrency=(2,))
    level = (await run_against(FakeServer(), load)).servers[0].levels[0]
    assert level.clients.num_requests >= 2
    assert level.output_tokens == 5 * level.clients.num_requests


def test_servers_take_turns_in_alternating_order() -> None:
    a, b = (Server(label=name, url=f"http://{name}") for name in "ab")
    order = take_turns(replace(LOAD, rounds=2), [a, b])
    assert [(turn, server.label, level) for turn, server, level in order] == [
        (0, "a", 1),
        (0, "b", 1),
        (0, "a", 3),
        (0, "b", 3),
        (1, "b", 1),
        (1, "a", 1),
        (1, "b", 3),
        (1, "a", 3),
    ]


def test_figures_come_from_the_times_of_the_texts() -> None:
    answers = [
        BenchAnswer(sent=1.0, texts=[1.5, 1.6, 1.8], ended=2.0, usage_tokens=4),
        BenchAnswer(sent=2.0, texts=[2.5], ended=2.5, usage_tokens=1),
    ]
    seen = Round(answers=answers, wall_seconds=2.0, cpu_seconds=0.5)
    level = report_level(2, [seen])
    assert level.tokens_per_second == pytest.approx(5 / 2)
    assert level.ttft.median == pytest.approx(0.5)
    assert level.itl.maximum == pytest.approx(0.2)
    assert level.tpot.median == pytest.approx(0.3 / 3)
    assert level.latency.maximum == pytest.approx(1.0)
    assert level.clients.cpu == pytest.approx(0.25)


def test_throughput_is_the_median_of_the_rounds() -> None:
    rounds = [
        Round(
            answers=[BenchAnswer(sent=0.0, usage_tokens=tokens)],
            wall_seconds=1.0,
        )
        for tokens in (10, 90, 20)
    ]
    level = report_level(1, rounds)
    assert level.tokens_per_second == pytest.approx(20.0)
    assert level.tokens_per_second_by_round == (10.0, 90.0, 20.0)


@pytest.fixture
def save_two(run_against: RunAgainst, tmp_path: Path) -> Callable[..., Any]:
    """Save two results, under one label."""

    async def save_them(*loads: Load) -> list[Path]:
        paths = [tmp_path / "monday.json", tmp_path / "tuesday.json"]
        for path, load in zip(paths, loads):
            save(path, await run_against(FakeServer(), load))
        return paths

    return save_them


async def test_saved_results_are_read_back_and_compared(save_two: Any) -> None:
    merged = merge_reports(load_reports(await save_two(LOAD, LOAD), Report))
    assert [server.label for server in merged.servers] == ["fake", "fake (2)"]
    text = render_report(merged)
    assert "ratio of medians" in text
    assert text.count("fake (2) / fake ") == len(LOAD.concurrency)


async def test_results_of_different_loads_are_not_compared(
    save_two: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = await save_two(LOAD, replace(LOAD, output_tokens=6))
    assert main(["bench", "serve", "--compare", *map(str, paths)]) == 2
    assert "different loads" in capsys.readouterr().err


async def test_a_result_without_an_answer_fails_and_is_drawn(
    run_against: RunAgainst, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = replace(LOAD, concurrency=(1,), requests=1, warmup=0)
    save(tmp_path / "x.json", await run_against(FakeServer(broken="refuse"), load))
    drawn = tmp_path / "x.png"
    command = ["--compare", str(tmp_path / "x.json"), "--plot", str(drawn)]
    assert main(["bench", "serve", *command]) == 1
    assert "no request succeeded: fake" in capsys.readouterr().err
    assert drawn.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
