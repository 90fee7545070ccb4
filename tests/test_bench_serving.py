"""bench/serving.py counts, divides and draws what a server with a known output sends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
import json
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest
import serving
import trio

SCRIPT = Path(__file__).parents[1] / "bench" / "serving.py"

LOAD = serving.Load(
    concurrency=(1, 3), requests=6, warmup=2, output_tokens=5, timeout=30.0
)


@dataclass
class FakeServer:
    """A server of exactly `max_tokens` tokens an answer, which remembers its requests.

    `refused` names fields that it answers 400 to; `broken` makes it fail after the
    first request, which is the one that asks what it understands. Later requests wait
    until `num_probes_awaited` probes of /health have come.
    """

    refused: frozenset[str] = frozenset()
    gives_usage: bool = True
    broken: str | None = None
    tokens_in_event: int = 1
    closes: bool = False
    has_health: bool = True
    num_probes_awaited: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_probes: int = 0
    num_connections: int = 0
    probed: trio.Event = field(default_factory=trio.Event)

    async def handle(self, stream: trio.SocketStream) -> None:
        self.num_connections += 1
        # A client that has seen enough may leave with a reset.
        with suppress(trio.BrokenResourceError):
            async with stream:
                await self.converse(stream)

    async def converse(self, stream: trio.SocketStream) -> None:
        rest = b""
        while (request := await read_request(stream, rest)) is not None:
            line, body, rest = request
            if body and self.bodies and self.num_probes < self.num_probes_awaited:
                await self.probed.wait()
            await stream.send_all(self.answer(line, body))
            if self.closes:
                return

    def answer(self, line: str, body: bytes) -> bytes:
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
        events.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if self.gives_usage and "stream_options" in asked:
            usage = {"completion_tokens": asked["max_tokens"]}
            events.append({"choices": [], "usage": usage})
        return [*map(write_event, events), b"data: [DONE]\n\n"]


def write_event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def read_request(
    stream: trio.SocketStream, rest: bytes
) -> tuple[str, bytes, bytes] | None:
    while b"\r\n\r\n" not in rest:
        if not (data := await stream.receive_some()):
            return None
        rest += data
    head, _, rest = rest.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(rest) < length:
        rest += await stream.receive_some()
    line = " ".join(head.decode().split()[:2])
    return line, rest[:length], rest[length:]


async def run_against(fake: FakeServer, load: Any = LOAD) -> Any:
    """Measure one fake server on a real socket."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            url = await listen(nursery, fake)
            servers = [serving.Server(label="fake", url=url)]
            report = await serving.measure(load, servers)
            nursery.cancel_scope.cancel()
    return report


async def listen(nursery: trio.Nursery, fake: FakeServer) -> str:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, fake.handle, listeners)
    return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"


async def test_every_request_and_token_is_counted() -> None:
    fake = FakeServer()
    report = await run_against(fake)
    (server,) = report.servers
    assert server.model == "tiny"
    assert [level.concurrency for level in server.levels] == [1, 3]
    for level in server.levels:
        assert (level.num_requests, level.num_errors) == (6, 0)
        assert (level.output_tokens, level.tokens_per_request) == (30, 5.0)
        assert level.counted_by == "usage"
        assert level.ttft_seconds.count == level.latency_seconds.count == 6
        # Five tokens have four gaps; the event that names the role is not a token.
        assert level.itl_seconds.count == 6 * 4
    # The dialect, two to warm up, and two levels.
    assert len(fake.bodies) == 1 + 2 + 2 * 6


async def test_health_is_probed_while_requests_run() -> None:
    load = replace(LOAD, concurrency=(2,), warmup=0)
    report = await run_against(FakeServer(num_probes_awaited=4), load)
    level = report.servers[0].levels[0]
    # The first of the four asked whether there is such a path; the last one's answer
    # may come after those that it set free.
    assert level.health_seconds.count >= 2
    assert level.num_health_failures == 0


async def test_a_server_without_health_is_measured_without_it() -> None:
    fake = FakeServer(has_health=False)
    report = await run_against(fake)
    assert fake.num_probes == 1
    assert [level.health_seconds for level in report.servers[0].levels] == [None, None]


async def test_a_client_keeps_its_connection() -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, concurrency=(1,), warmup=0))
    # One to learn the dialect, one of the client, one of the probes.
    assert fake.num_connections == 3


async def test_a_server_that_closes_every_connection_is_measured_too() -> None:
    report = await run_against(FakeServer(closes=True))
    assert [level.num_errors for level in report.servers[0].levels] == [0, 0]


async def test_no_prompt_is_sent_twice() -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, rounds=2))
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(set(prompts)) == len(prompts)
    assert {len(prompt.split()) for prompt in prompts} == {LOAD.input_words}


async def test_a_shared_prefix_is_the_only_thing_shared() -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, shared_prefix_words=7, input_words=20))
    prompts = [body["messages"][0]["content"].split() for body in fake.bodies]
    assert len({tuple(prompt[:7]) for prompt in prompts}) == 1
    assert len({tuple(prompt[7:]) for prompt in prompts}) == len(prompts)
    assert {len(prompt) for prompt in prompts} == {27}


async def test_a_server_measured_against_itself_meets_no_prompt_twice() -> None:
    fake = FakeServer()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            url = await listen(nursery, fake)
            servers = serving.read_servers([f"a={url}", f"b={url}"], None, None)
            await serving.measure(LOAD, servers)
            nursery.cancel_scope.cancel()
    prompts = [body["messages"][0]["content"] for body in fake.bodies]
    assert len(set(prompts)) == len(prompts) == 2 * 15


async def test_the_completions_endpoint_sends_a_prompt() -> None:
    fake = FakeServer()
    await run_against(fake, replace(LOAD, endpoint="completions"))
    assert all("prompt" in body and "messages" not in body for body in fake.bodies)


@pytest.mark.parametrize(
    ("refused", "counted_by"),
    [({"ignore_eos"}, "usage"), ({"ignore_eos", "stream_options"}, "events")],
)
async def test_what_a_server_refuses_is_left_out(
    refused: set[str], counted_by: str
) -> None:
    report = await run_against(FakeServer(refused=frozenset(refused)))
    assert not report.servers[0].has_ignore_eos
    for level in report.servers[0].levels:
        assert (level.num_errors, level.output_tokens) == (0, 30)
        assert level.counted_by == counted_by


async def test_tokens_are_counted_from_events_where_no_usage_comes() -> None:
    report = await run_against(FakeServer(gives_usage=False))
    level = report.servers[0].levels[0]
    assert (level.counted_by, level.output_tokens) == ("events", 30)
    assert "tokens counted by events" in serving.render_report(report)


async def test_several_tokens_in_an_event_are_told() -> None:
    load = replace(LOAD, output_tokens=6)
    report = await run_against(FakeServer(tokens_in_event=2), load)
    level = report.servers[0].levels[0]
    assert (level.output_tokens, level.tokens_per_event) == (36, 2.0)
    assert level.itl_seconds.count == 6 * 2
    assert "compare TPOT, not ITL" in serving.render_report(report)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("refuse", "HTTP 400: what"),
        ("error event", "the engine died"),
        ("cut", "the stream ended early"),
    ],
)
async def test_failed_requests_are_counted_and_told(broken: str, message: str) -> None:
    load = replace(LOAD, concurrency=(3,), requests=3, warmup=0)
    report = await run_against(FakeServer(broken=broken), load)
    level = report.servers[0].levels[0]
    assert (level.num_requests, level.num_errors) == (0, 3)
    assert serving.list_failed(report) == ["fake"]
    assert message in serving.render_report(report)


async def test_a_server_that_is_not_there_is_named() -> None:
    servers = [serving.Server(label="gone", url="http://127.0.0.1:1")]
    with pytest.raises(serving.ServerUnusable, match="gone"):
        await serving.measure(LOAD, servers)


async def test_a_server_that_never_answers_ends_with_the_time_limit() -> None:
    async def ignore(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, ignore, listeners)
            port = listeners[0].socket.getsockname()[1]
            servers = [serving.Server(label="mute", url=f"http://127.0.0.1:{port}")]
            report = await serving.measure(replace(LOAD, timeout=0.05), servers)
            nursery.cancel_scope.cancel()
    assert report.is_cut
    assert report.servers == ()
    assert "cut by --timeout" in serving.render_report(report)


async def test_a_duration_bounds_a_level_instead_of_a_count() -> None:
    load = replace(LOAD, requests=None, duration=0.05, concurrency=(2,))
    level = (await run_against(FakeServer(), load)).servers[0].levels[0]
    assert level.num_requests >= 2
    assert level.output_tokens == 5 * level.num_requests


def test_servers_take_turns_and_the_order_turns_round() -> None:
    a, b = (serving.Server(label=name, url=f"http://{name}") for name in "ab")
    order = serving.take_turns(replace(LOAD, rounds=2), [a, b])
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


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([1.0, 2.0, 3.0], 100, 3.0),
        ([1.0, 2.0, 3.0], 0, 1.0),
        ([float(value) for value in range(101)], 99, 99.0),
        ([0.0, 10.0], 90, 9.0),
    ],
)
def test_percentiles_lie_where_numpy_puts_them(
    values: list[float], percent: float, expected: float
) -> None:
    assert serving.percentile(values, percent) == pytest.approx(expected)


def test_the_spread_of_nothing_is_nothing() -> None:
    assert serving.spread([]) is None


def test_the_spread_does_not_need_sorted_samples() -> None:
    assert serving.spread([3.0, 1.0, 2.0]) == serving.Spread(
        median=2.0,
        p90=pytest.approx(2.8),
        p99=pytest.approx(2.98),
        maximum=3.0,
        count=3,
    )


def test_figures_come_from_the_times_of_the_texts() -> None:
    answers = [
        serving.Answer(sent=1.0, texts=[1.5, 1.6, 1.8], ended=2.0, usage_tokens=4),
        serving.Answer(sent=2.0, texts=[2.5], ended=2.5, usage_tokens=1),
    ]
    seen = serving.Round(answers=answers, wall_seconds=2.0, cpu_seconds=0.5)
    level = serving.report_level(2, [seen])
    assert level.tokens_per_second == pytest.approx(5 / 2)
    assert level.ttft_seconds.median == pytest.approx(0.5)
    assert level.itl_seconds.maximum == pytest.approx(0.2)
    assert level.tpot_seconds.median == pytest.approx(0.3 / 3)
    assert level.latency_seconds.maximum == pytest.approx(1.0)
    assert level.client_cpu == pytest.approx(0.25)


def test_throughput_is_the_median_of_the_rounds() -> None:
    rounds = [
        serving.Round(
            answers=[serving.Answer(sent=0.0, usage_tokens=tokens)],
            wall_seconds=1.0,
        )
        for tokens in (10, 90, 20)
    ]
    level = serving.report_level(1, rounds)
    assert level.tokens_per_second == pytest.approx(20.0)
    assert level.tokens_per_second_by_round == (10.0, 90.0, 20.0)


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_read_however_they_are_cut(step: int, newline: bytes) -> None:
    stream = (
        b": a comment\n\nevent: x\n"
        b'data: {"choices": [{"text": "a"}]}\n\n'
        b'data:{"choices": [{"delta": {"reasoning_content": "b"}}], "usage": null}\n\n'
        b"data: [DONE]\n\n"
    ).replace(b"\n", newline)
    reader = serving.EventReader()
    events = [
        event
        for start in range(0, len(stream), step)
        for event in reader.feed(stream[start : start + step])
    ]
    assert [event.choices[0].has_text() for event in events] == [True, True]
    assert reader.is_done


def test_a_url_may_carry_a_label() -> None:
    servers = serving.read_servers(
        ["ours=http://127.0.0.1:8000", "https://peer.example/api?a=b"], None, None
    )
    assert [(server.label, server.url) for server in servers] == [
        ("ours", "http://127.0.0.1:8000"),
        ("peer.example", "https://peer.example/api?a=b"),
    ]


@pytest.mark.parametrize(
    "urls", [["127.0.0.1:8000"], ["a=http://x", "a=http://y"], ["http://x", "http://x"]]
)
def test_urls_that_make_no_sense_are_refused(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="LABEL|labels"):
        serving.read_servers(urls, None, None)


async def save_two(folder: Path) -> list[Path]:
    """Save two results, under one label."""
    paths = [folder / "monday.json", folder / "tuesday.json"]
    for path in paths:
        report = await run_against(FakeServer())
        path.write_bytes(serving.msgspec.json.encode(report))
    return paths


async def test_saved_results_are_read_back_and_compared(tmp_path: Path) -> None:
    paths = await save_two(tmp_path)
    merged = serving.merge_reports(serving.load_reports(paths))
    assert [server.label for server in merged.servers] == ["fake", "fake (2)"]
    text = serving.render_report(merged)
    assert "ratio of medians" in text
    assert text.count("fake (2) / fake ") == len(LOAD.concurrency)


async def test_results_of_different_loads_are_not_compared(tmp_path: Path) -> None:
    paths = await save_two(tmp_path)
    saved = json.loads(paths[0].read_text())
    saved["load"]["output_tokens"] = 6
    paths[0].write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="different loads"):
        serving.check_same(report.load for report in serving.load_reports(paths))


def test_a_run_that_could_not_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone is not a folder"):
        serving.check_folders([None, tmp_path / "fine.json", tmp_path / "gone" / "x"])


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text('{"created": 3}')
    with pytest.raises(ValueError, match="odd.json is not a saved result"):
        serving.load_reports([path])


def test_columns_line_up() -> None:
    assert serving.align([["name", "x"], ["a", "100"]]) == "name    x\na     100"


async def run_command(
    fake: FakeServer, *options: str | Path
) -> subprocess.CompletedProcess[bytes]:
    """Run the script as a user does, against one fake server."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            command: list[str | Path] = [sys.executable, SCRIPT, "--url"]
            done = await trio.run_process(
                [*command, await listen(nursery, fake), *options],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            nursery.cancel_scope.cancel()
    return done


@pytest.mark.slow
async def test_the_command_prints_saves_and_draws(tmp_path: Path) -> None:
    saved, drawn = tmp_path / "result.json", tmp_path / "result.png"
    load = ("--concurrency", "1,2", "--requests", "4", "--output-tokens", "3")
    done = await run_command(FakeServer(), *load, "--json", saved, "--plot", drawn)
    assert (done.returncode, done.stderr) == (0, b"")
    above, below = done.stdout.decode().splitlines()[:2]
    assert "TTFT ms" in above and "tok/s" in below
    (server,) = json.loads(saved.read_text())["servers"]
    assert [level["output_tokens"] for level in server["levels"]] == [12, 12]
    assert drawn.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.slow
async def test_the_command_fails_when_every_request_does() -> None:
    load = ("--concurrency", "1", "--requests", "1", "--warmup", "0")
    done = await run_command(FakeServer(broken="refuse"), *load)
    assert done.returncode == 1
    assert b"no request succeeded" in done.stderr
