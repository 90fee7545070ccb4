"""How fast does a server stream to many clients at once, and does it still answer?

Question
  N clients each hold one streaming request open, and send the next when it ends. How
  many tokens a second does the server deliver, how long does a client wait for the
  first of them and between two of them, and how long does ``GET /health`` take all the
  while, from a connection of its own?

      python bench/serving.py --url http://127.0.0.1:8000 --concurrency 1,16,64
      python bench/serving.py --url ours=http://127.0.0.1:8000 \\
          --url peer=http://127.0.0.1:8001 --rounds 3 --json both.json --plot both.png
      python bench/serving.py --compare monday.json tuesday.json --plot days.png

  Any server of the OpenAI API will do. Several servers take turns at every level, in
  reversed order every other round, so that a slow minute of the machine hits them all.

Machine
  Whatever runs it; the report names it. Load generator and server usually share a
  machine, so the generator must be cheap: on 2 shared cores one event costs it 35-60 us
  on h11, which it therefore uses, against 190 us on httpx.

How to read the answer
  tok/s          output tokens of all clients over the time from the first request to
                 the last answer; the median of the rounds. The end of a level, where
                 some clients have nothing left to ask, counts: ask for more requests if
                 the level is short.
  TTFT           from sending a request to its first text.
  ITL            between two events with text, as they reach the client: a server
                 that sends two tokens in one event, or two events in one packet, has
                 shorter or longer gaps for the same speed. Read it with
  TPOT           (last text - first text) / (tokens - 1) of one request, which does not
                 care how tokens are packed.
  /health        one probe every 50 ms. A probe that could not be sent because the last
                 one was still unanswered counts from when it was due.
  client cpu     CPU time of this process over wall time. Near 100 % the figures are
                 the client's and not the server's. `client lag` in the JSON is how late
                 its own timers were.
  tok/req        tokens of one answer; --output-tokens where the server honours
                 ignore_eos. Where tokens were counted from events because the server
                 gives no usage, a line below the table says so.

Prompts are seeded random words, each request its own, so that prefix caches find
nothing but the template and --shared-prefix-words. A second run with the same seed
against the same live server finds everything: change --seed, or restart the server.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
import itertools
import math
import os
from pathlib import Path
import platform
import random
import re
import ssl
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import h11
import msgspec
import trio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEALTH_INTERVAL_SECONDS = 0.05

# A server that refuses everything would otherwise be asked as fast as the client can.
PAUSE_AFTER_ERROR_SECONDS = 0.1

# Above this share of one core the generator itself may be what is measured; a guess.
BUSY_CLIENT = 0.7

# Common words, so that a tokenizer makes about one token of each, as it does of prose.
WORDS = (
    "time year people way day man thing woman life child world school state family "
    "student group country problem hand part place case week company system program "
    "question work night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body "
    "back parent face level office door health person art war history party result "
    "change morning reason research girl guy moment air teacher force order plan river "
    "light green small large early young important public bad same able good new first "
    "last long great little own other old high different big next run move live believe "
    "hold bring happen write provide sit stand lose pay meet include continue set learn "
    "lead understand watch follow stop create speak read allow add spend grow open walk "
    "win offer remember love consider appear buy wait serve die send expect build stay"
).split()


# ---- what is asked ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every server is asked for; one field is one option."""

    endpoint: Literal["chat", "completions"] = "chat"
    concurrency: tuple[int, ...] = (1, 16, 64)
    requests: int | None = None
    duration: float | None = None
    rounds: int = 1
    warmup: int = 2
    input_words: int = 128
    shared_prefix_words: int = 0
    output_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    timeout: float = 900.0

    def num_requests(self, concurrency: int) -> int | None:
        """Requests of one round at this level; None when a duration bounds it."""
        if self.duration is not None:
            return None
        return self.requests or max(8, 4 * concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where one server is, and what the results call it.

    `turn` counts the earlier servers of this run with the same URL: prompts depend on
    it, so that a server that is measured against itself does not meet a prompt twice.
    """

    label: str
    url: str
    model: str | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one server was found to understand."""

    model: str
    has_ignore_eos: bool
    has_stream_options: bool
    has_health: bool


def write_words(count: int, *seeds: object) -> str:
    """Draw `count` words; equal seeds give equal words."""
    return " ".join(random.Random("/".join(map(str, seeds))).choices(WORDS, k=count))


def write_prompt(load: Load, *seeds: object) -> str:
    """Write one prompt: the words that all share, then its own."""
    shared = write_words(load.shared_prefix_words, load.seed, "shared")
    return f"{shared} {write_words(load.input_words, load.seed, *seeds)}".strip()


def encode_request(load: Load, dialect: Dialect, prompt: str) -> bytes:
    """Write the JSON body of one streaming request."""
    body: dict[str, object] = {
        "model": dialect.model,
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "stream": True,
    }
    if load.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if dialect.has_ignore_eos:
        body["ignore_eos"] = True
    if dialect.has_stream_options:
        body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body)


# ---- HTTP, as little as will do ------------------------------------------------------


class RequestFailed(Exception):
    """Raised when a server answered, but not with what was asked for."""


class RequestRefused(RequestFailed):
    """Raised when the answer's status is not 200."""

    def __init__(self, status: int, body: bytes) -> None:
        text = " ".join(body[:300].decode(errors="replace").split())
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


class ServerUnusable(Exception):
    """Raised before any load when a server cannot be measured at all."""

    def __init__(self, server: Server, reason: object) -> None:
        super().__init__(f"{server.label} ({server.url}): {reason}")


# What a request may end with when the server is at fault.
FAILURES = (
    OSError,
    trio.BrokenResourceError,
    h11.RemoteProtocolError,
    msgspec.DecodeError,
    RequestFailed,
)


class Connection:
    """One keep-alive HTTP/1.1 connection, opened when needed and again when closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._stream: trio.abc.Stream | None = None
        self._http = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; the next request opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request and read the head of its answer.

        Raises:
          RequestRefused: the status is not 200; the body has been read.
        """
        reused = self._stream is not None
        try:
            status = await self._exchange(method, path, body)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            # A server may close an idle connection just as it is used again; that is
            # no failure of the request (RFC 9112, section 9.3.1).
            if not reused:
                raise
            await self.aclose()
            status = await self._exchange(method, path, body)
        if status != 200:
            raise RequestRefused(status, await self.read_all())

    async def read(self) -> bytes:
        """Read some of the answer's body; empty at its end."""
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Data) and event.data:
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                await self._end_cycle()
                return b""

    async def read_all(self) -> bytes:
        """Read the rest of the answer's body."""
        pieces = []
        while data := await self.read():
            pieces.append(data)
        return b"".join(pieces)

    async def _exchange(self, method: str, path: str, body: bytes) -> int:
        stream = await self._open()
        request = h11.Request(
            method=method,
            target=self._prefix + path,
            headers=[
                ("Host", self._netloc),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
            ],
        )
        events: list[h11.Event] = [request, h11.Data(data=body), h11.EndOfMessage()]
        # One packet: a body in a packet of its own costs the server another wake-up.
        await stream.send_all(b"".join(self._http.send(each) or b"" for each in events))
        while not isinstance(event := await self._next_event(), h11.Response):
            pass
        return event.status_code

    async def _open(self) -> trio.abc.Stream:
        if self._stream is None:
            self._http = h11.Connection(h11.CLIENT)
            if self._tls:
                self._stream = await trio.open_ssl_over_tcp_stream(
                    self._host, self._port, ssl_context=ssl.create_default_context()
                )
            else:
                self._stream = await trio.open_tcp_stream(self._host, self._port)
        return self._stream

    async def _next_event(self) -> h11.Event:
        assert self._stream is not None, "an answer is read from an open connection"
        while not isinstance(event := self._http.next_event(), h11.Event):
            # Invariant: this is NEED_DATA; only a server's side is ever PAUSED.
            self._http.receive_data(bytes(await self._stream.receive_some(65536)))
        return event

    async def _end_cycle(self) -> None:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            await self.aclose()


# ---- one request ---------------------------------------------------------------------


class Delta(msgspec.Struct):
    content: str | None = None
    # Servers do not agree what the text of a reasoning model's thoughts is called.
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_text(self) -> bool:
        """Say whether a user would see something; a role alone is nothing to see."""
        if self.delta is None:
            return bool(self.text)
        return bool(
            self.delta.content or self.delta.reasoning_content or self.delta.reasoning
        )


class Usage(msgspec.Struct):
    completion_tokens: int = 0


class Event(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class EventReader:
    """Cuts a stream of bytes into the events that it carries."""

    def __init__(self) -> None:
        self._rest = b""
        self._decoder = msgspec.json.Decoder(Event)
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take bytes, however they were cut, and give the events that they complete.

        Every event of this API is one `data:` line, so blank lines, comments and other
        fields are passed over (WHATWG HTML, section 9.2.6).
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            value = line[5:].strip()
            if value == b"[DONE]":
                self.is_done = True
            else:
                yield self._decoder.decode(value)


@dataclass(slots=True, kw_only=True)
class Answer:
    """When the text of one request came; times on trio's clock, in seconds."""

    sent: float
    texts: list[float] = field(default_factory=list)
    ended: float = 0.0
    usage_tokens: int | None = None
    is_finished: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens as the server counts them; else one for each event with text."""
        return len(self.texts) if self.usage_tokens is None else self.usage_tokens

    def take(self, event: Event, now: float) -> None:
        """Note what one event, read at `now`, says.

        Raises:
          RequestFailed: it says that the server failed.
        """
        if event.error is not None:
            raise RequestFailed(f"error event: {event.error}")
        if event.usage is not None:
            self.usage_tokens = event.usage.completion_tokens
        for choice in event.choices:
            if choice.has_text():
                self.texts.append(now)
            if choice.finish_reason is not None:
                self.is_finished = True


async def stream_answer(connection: Connection, endpoint: str, body: bytes) -> Answer:
    """Send one streaming request and read it to its end.

    Raises:
      RequestFailed: the server refused it, failed, or stopped early.
    """
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    answer = Answer(sent=trio.current_time())
    await connection.send("POST", path, body)
    events = EventReader()
    while data := await connection.read():
        now = trio.current_time()
        for event in events.feed(data):
            answer.take(event, now)
    answer.ended = trio.current_time()
    if not (events.is_done or answer.is_finished):
        raise RequestFailed("the stream ended early")
    if answer.num_tokens == 0:
        raise RequestFailed("the stream ended without a token")
    return answer


# ---- one level -----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Round:
    """Everything seen of one server at one level, once."""

    answers: list[Answer] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    health_seconds: list[float] = field(default_factory=list)
    num_health_failures: int = 0
    lag_seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all clients over the time that it took."""
        return sum(answer.num_tokens for answer in self.answers) / self.wall_seconds


async def run_round(
    server: Server, dialect: Dialect, load: Load, bodies: Iterator[bytes], clients: int
) -> Round:
    """Let `clients` send the bodies, one after another, until there are no more."""
    seen = Round()
    started, cpu_started = trio.current_time(), time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe_health, server, dialect, seen)
        async with trio.open_nursery() as senders:
            for _ in range(clients):
                senders.start_soon(run_client, server, load.endpoint, bodies, seen)
        nursery.cancel_scope.cancel()
    seen.wall_seconds = trio.current_time() - started
    seen.cpu_seconds = time.process_time() - cpu_started
    return seen


async def run_client(
    server: Server, endpoint: str, bodies: Iterator[bytes], seen: Round
) -> None:
    """Be one client: a request, its whole answer, the next request."""
    async with Connection(server.url) as connection:
        for body in bodies:
            try:
                seen.answers.append(await stream_answer(connection, endpoint, body))
            except FAILURES as error:
                seen.errors[describe(error)] += 1
                await connection.aclose()
                await trio.sleep(PAUSE_AFTER_ERROR_SECONDS)


async def probe_health(server: Server, dialect: Dialect, seen: Round) -> None:
    """Ask for /health at a steady pace until cancelled.

    The pace does not wait for the server: while an answer is late, probes fall due, and
    their time runs from then. Otherwise a server that hangs for a second would be
    charged with one slow probe where its users would have met twenty (Tene, "How not to
    measure latency", 2013: coordinated omission).
    """
    async with Connection(server.url) as connection:
        due = trio.current_time()
        while True:
            asked = due
            if trio.current_time() < due:
                await trio.sleep_until(due)
                # How late this process is to wake up is its own fault.
                asked = trio.current_time()
                seen.lag_seconds.append(asked - due)
            if dialect.has_health:
                await probe_once(connection, asked, seen)
            due += HEALTH_INTERVAL_SECONDS


async def probe_once(connection: Connection, asked: float, seen: Round) -> None:
    """Ask for /health once; its time runs from `asked`."""
    try:
        await connection.send("GET", "/health")
        await connection.read_all()
    except FAILURES:
        seen.num_health_failures += 1
        await connection.aclose()
    else:
        seen.health_seconds.append(trio.current_time() - asked)


def describe(error: BaseException) -> str:
    """Say in one line what went wrong."""
    return str(error) or type(error).__name__


# ---- a whole run ---------------------------------------------------------------------


async def measure(load: Load, servers: Sequence[Server]) -> Report:
    """Put every server under every level of load, in turns.

    Raises:
      ServerUnusable: a server cannot be reached, or refuses every form of the request.
    """
    dialects: dict[str, Dialect] = {}
    rounds: dict[tuple[str, int], list[Round]] = {}
    with trio.move_on_after(load.timeout) as limit:
        for server in servers:
            dialects[server.label] = await learn_dialect(server, load)
        for server in servers:
            await warm_up(server, dialects[server.label], load)
        for turn, server, level in take_turns(load, servers):
            dialect = dialects[server.label]
            bodies = issue_bodies(load, dialect, level, server.turn, level, turn)
            seen = await run_round(server, dialect, load, bodies, level)
            rounds.setdefault((server.label, level), []).append(seen)
    return Report(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=f"{platform.platform()}, {os.cpu_count()} cores",
        load=load,
        is_cut=limit.cancelled_caught,
        servers=tuple(
            report_server(server, dialects[server.label], rounds)
            for server in servers
            if server.label in dialects
        ),
    )


def take_turns(
    load: Load, servers: Sequence[Server]
) -> Iterator[tuple[int, Server, int]]:
    """Order a run: (round, server, level); servers are each other's neighbours."""
    for turn in range(load.rounds):
        for level in load.concurrency:
            for server in servers[:: -1 if turn % 2 else 1]:
                yield turn, server, level


def issue_bodies(
    load: Load, dialect: Dialect, level: int, *seeds: object
) -> Iterator[bytes]:
    """Give out one round's requests until there are enough or time is up."""
    count = load.num_requests(level)
    until = trio.current_time() + (math.inf if load.duration is None else load.duration)
    for index in itertools.count() if count is None else range(count):
        if trio.current_time() >= until:
            return
        yield encode_request(load, dialect, write_prompt(load, *seeds, index))


async def warm_up(server: Server, dialect: Dialect, load: Load) -> None:
    """Send requests that are not measured, as many at once as the load will."""
    bodies = [
        encode_request(load, dialect, write_prompt(load, "warmup", server.turn, index))
        for index in range(load.warmup)
    ]
    clients = min(len(bodies), max(load.concurrency))
    await run_round(server, dialect, load, iter(bodies), clients)


async def learn_dialect(server: Server, load: Load) -> Dialect:
    """Find out which of the request's fields a server understands.

    Both are extensions for some: a server that does not know `ignore_eos` or
    `stream_options` may pass over them, which is found out by counting, or answer 400,
    which is found out here.
    """
    async with Connection(server.url) as connection:
        try:
            model = server.model or await fetch_model(connection)
            has_health = await has_path(connection, "/health")
            for has_ignore_eos, has_stream_options in (
                (True, True),
                (False, True),
                (True, False),
                (False, False),
            ):
                dialect = Dialect(
                    model=model,
                    has_ignore_eos=has_ignore_eos,
                    has_stream_options=has_stream_options,
                    has_health=has_health,
                )
                if await understands(connection, load, dialect, server.turn):
                    return dialect
        except FAILURES as error:
            raise ServerUnusable(server, describe(error)) from error
    raise AssertionError("the plainest request is understood, or raises")


async def understands(
    connection: Connection, load: Load, dialect: Dialect, turn: int
) -> bool:
    """Say whether the server takes a request in this dialect."""
    body = encode_request(load, dialect, write_prompt(load, "dialect", turn))
    try:
        await stream_answer(connection, load.endpoint, body)
    except RequestRefused as error:
        has_extensions = dialect.has_ignore_eos or dialect.has_stream_options
        if error.status in (400, 422) and has_extensions:
            return False
        raise
    return True


class ModelCard(msgspec.Struct):
    id: str


class ModelList(msgspec.Struct):
    data: list[ModelCard]


async def fetch_model(connection: Connection) -> str:
    """Ask a server for the first model that it serves."""
    await connection.send("GET", "/v1/models")
    listed = msgspec.json.decode(await connection.read_all(), type=ModelList)
    if not listed.data:
        raise RequestFailed("/v1/models is empty; say --model")
    return listed.data[0].id


async def has_path(connection: Connection, path: str) -> bool:
    """Say whether a GET of this path is answered with 200."""
    try:
        await connection.send("GET", path)
    except RequestRefused:
        return False
    await connection.read_all()
    return True


# ---- figures -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a set of durations is spread; seconds."""

    median: float
    p90: float
    p99: float
    maximum: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """One server at one level; the samples of all rounds are pooled.

    client_cpu is a share of one core; num_requests counts those that succeeded.
    """

    concurrency: int
    num_requests: int
    num_errors: int
    errors: dict[str, int]
    wall_seconds: float
    output_tokens: int
    tokens_per_request: float
    tokens_per_event: float
    tokens_per_second: float
    tokens_per_second_by_round: tuple[float, ...]
    counted_by: Literal["usage", "events", "usage and events"]
    ttft_seconds: Spread | None
    itl_seconds: Spread | None
    tpot_seconds: Spread | None
    latency_seconds: Spread | None
    health_seconds: Spread | None
    num_health_failures: int
    client_cpu: float
    client_lag_seconds: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server at all levels."""

    label: str
    url: str
    model: str
    has_ignore_eos: bool
    levels: tuple[LevelReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What --json writes and --compare reads."""

    created: str
    machine: str
    load: Load
    is_cut: bool
    servers: tuple[ServerReport, ...]


def percentile(values: Sequence[float], percent: float) -> float:
    """Read a percentile off sorted values, between two of them where it falls there.

    Source: Hyndman and Fan 1996, definition 7, which is also numpy's default.
    """
    position = (len(values) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def spread(samples: Iterable[float]) -> Spread | None:
    """Summarise durations; None when there are none."""
    values = sorted(samples)
    if not values:
        return None
    return Spread(
        median=percentile(values, 50),
        p90=percentile(values, 90),
        p99=percentile(values, 99),
        maximum=values[-1],
        count=len(values),
    )


def report_server(
    server: Server, dialect: Dialect, rounds: dict[tuple[str, int], list[Round]]
) -> ServerReport:
    """Summarise one server's part of a run."""
    return ServerReport(
        label=server.label,
        url=server.url,
        model=dialect.model,
        has_ignore_eos=dialect.has_ignore_eos,
        levels=tuple(
            report_level(level, seen)
            for (label, level), seen in rounds.items()
            if label == server.label
        ),
    )


def report_level(concurrency: int, rounds: Sequence[Round]) -> LevelReport:
    """Summarise one server's rounds at one level."""
    answers = [answer for seen in rounds for answer in seen.answers]
    errors = sum((seen.errors for seen in rounds), Counter[str]())
    speeds = sorted(seen.tokens_per_second for seen in rounds)
    wall_seconds = sum(seen.wall_seconds for seen in rounds)
    output_tokens = sum(answer.num_tokens for answer in answers)
    num_events = sum(len(answer.texts) for answer in answers)
    return LevelReport(
        concurrency=concurrency,
        num_requests=len(answers),
        num_errors=errors.total(),
        errors=dict(errors),
        wall_seconds=wall_seconds,
        output_tokens=output_tokens,
        tokens_per_request=output_tokens / max(1, len(answers)),
        tokens_per_event=output_tokens / max(1, num_events),
        tokens_per_second=percentile(speeds, 50),
        tokens_per_second_by_round=tuple(seen.tokens_per_second for seen in rounds),
        counted_by=tell_counting(answers),
        ttft_seconds=spread(a.texts[0] - a.sent for a in answers if a.texts),
        itl_seconds=spread(gap for answer in answers for gap in gaps(answer)),
        tpot_seconds=spread(pace for answer in answers for pace in paces(answer)),
        latency_seconds=spread(answer.ended - answer.sent for answer in answers),
        health_seconds=spread(t for seen in rounds for t in seen.health_seconds),
        num_health_failures=sum(seen.num_health_failures for seen in rounds),
        client_cpu=sum(seen.cpu_seconds for seen in rounds) / wall_seconds,
        client_lag_seconds=spread(t for seen in rounds for t in seen.lag_seconds),
    )


def gaps(answer: Answer) -> Iterator[float]:
    """Give the times between an answer's events with text."""
    for before, after in zip(answer.texts, answer.texts[1:]):
        yield after - before


def paces(answer: Answer) -> Iterator[float]:
    """Give an answer's time per output token, if it has two to measure between."""
    if len(answer.texts) > 1 and answer.num_tokens > 1:
        yield (answer.texts[-1] - answer.texts[0]) / (answer.num_tokens - 1)


def tell_counting(
    answers: Sequence[Answer],
) -> Literal["usage", "events", "usage and events"]:
    """Say what the tokens were counted by."""
    from_usage = [answer.usage_tokens is not None for answer in answers]
    if all(from_usage):
        return "usage"
    return "usage and events" if any(from_usage) else "events"


# ---- the table -----------------------------------------------------------------------

DURATIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # heading, field of LevelReport, fields of Spread
    ("TTFT ms", "ttft_seconds", ("median", "p90", "p99")),
    ("ITL ms", "itl_seconds", ("median", "p90", "p99")),
    ("TPOT ms", "tpot_seconds", ("median",)),
    ("latency ms", "latency_seconds", ("median", "p90", "p99")),
    ("/health ms", "health_seconds", ("median", "p99", "maximum")),
)

COLUMN_NAMES = {"maximum": "max"}


def render_report(report: Report) -> str:
    """Write a report as text: the table, ratios where there are several, and notes."""
    parts = [align(build_table(report))]
    ratios = build_ratios(report)
    if len(ratios) > 1:
        parts.append(align(ratios))
    parts.append("\n".join(write_notes(report)))
    return "\n\n".join(parts)


def build_table(report: Report) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a server and level."""
    above = ["", "", "", "", "", ""]
    below = ["server", "clients", "requests", "errors", "tok/req", "tok/s"]
    for heading, _, columns in DURATIONS:
        above += [heading] + [""] * (len(columns) - 1)
        below += [COLUMN_NAMES.get(column, column) for column in columns]
    rows = [above + ["client"], below + ["cpu %"]]
    for server, level in by_level(report):
        row = [
            server.label,
            str(level.concurrency),
            str(level.num_requests),
            str(level.num_errors),
            f"{level.tokens_per_request:.1f}",
            f"{level.tokens_per_second:.1f}",
        ]
        for _, name, columns in DURATIONS:
            row += write_spread(getattr(level, name), columns)
        rows.append(row + [f"{100 * level.client_cpu:.0f}"])
    return rows


def by_level(report: Report) -> Iterator[tuple[ServerReport, LevelReport]]:
    """Give every server's result at the first level, then at the next, and so on."""
    for concurrency in list_levels(report):
        for server in report.servers:
            for level in server.levels:
                if level.concurrency == concurrency:
                    yield server, level


def list_levels(report: Report) -> list[int]:
    """List the levels at which at least one server was measured."""
    return sorted({lv.concurrency for server in report.servers for lv in server.levels})


def write_spread(durations: Spread | None, columns: Sequence[str]) -> list[str]:
    """Write the wanted columns in milliseconds; a dash for what was not seen."""
    if durations is None:
        return ["-"] * len(columns)
    return [write_milliseconds(getattr(durations, column)) for column in columns]


def write_milliseconds(seconds: float) -> str:
    """Write a duration with as many digits as a reader can use."""
    milliseconds = 1000 * seconds
    return (
        f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 100 else 0}f}"
    )


def build_ratios(report: Report) -> list[list[str]]:
    """Divide every server's medians by the first server's at the same level."""
    names = [heading.removesuffix(" ms") for heading, _, _ in DURATIONS]
    rows = [["ratio of medians", "clients", "tok/s", *names]]
    if not report.servers:
        return rows
    first = report.servers[0]
    base = {level.concurrency: level for level in first.levels}
    for server, level in by_level(report):
        if server is not first and level.concurrency in base:
            rows.append(
                [
                    f"{server.label} / {first.label}",
                    str(level.concurrency),
                    *divide(level, base[level.concurrency]),
                ]
            )
    return rows


def divide(level: LevelReport, base: LevelReport) -> Iterator[str]:
    """Write the ratios of two levels' medians; a dash where one has none."""
    yield write_ratio(level.tokens_per_second, base.tokens_per_second)
    for _, name, _ in DURATIONS:
        over, under = getattr(level, name), getattr(base, name)
        both = over is not None and under is not None
        yield write_ratio(over.median, under.median) if both else "-"


def write_ratio(over: float, under: float) -> str:
    """Write over / under; a dash where there is nothing to divide by."""
    return f"{over / under:.2f}" if under else "-"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def write_notes(report: Report) -> Iterator[str]:
    """Say what the table cannot: who was measured, and what to doubt."""
    yield f"{report.machine}; {report.created}; {describe_load(report.load)}"
    for server in report.servers:
        yield f"{server.label}: {server.url}, model {server.model}"
        if not server.has_ignore_eos:
            yield f"{server.label}: ignore_eos was refused; answers may end early"
        for level in server.levels:
            for note in doubt(level):
                yield f"{server.label}, {level.concurrency} clients: {note}"
    if report.is_cut:
        yield f"cut by --timeout {report.load.timeout:g} s: what is missing was not run"


def doubt(level: LevelReport) -> Iterator[str]:
    """Say what a reader should know before believing a row."""
    if level.counted_by != "usage":
        yield f"tokens counted by {level.counted_by}"
    if level.num_requests and abs(level.tokens_per_event - 1) > 0.05:
        yield f"{level.tokens_per_event:.2f} tokens in an event: compare TPOT, not ITL"
    if level.client_cpu > BUSY_CLIENT:
        yield "client cpu is high: the load generator may be the limit"
    if level.num_health_failures:
        yield f"{level.num_health_failures} probes of /health failed"
    for message, count in level.errors.items():
        yield f"{count} x {message}"


def describe_load(load: Load) -> str:
    """Say in a few words what each request asked for."""
    shared = f"{load.shared_prefix_words} shared + " if load.shared_prefix_words else ""
    return (
        f"{load.endpoint}, {shared}{load.input_words} words in, "
        f"{load.output_tokens} tokens out, temperature {load.temperature:g}"
    )


# ---- the plot ------------------------------------------------------------------------

# Okabe and Ito's palette, which the colour-blind can tell apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

INK = "#333333"


def save_plot(report: Report, path: Path) -> None:
    """Draw the report as three panels over the number of clients, into a PNG file."""
    # Half a second of import, and not needed by those who read the table.
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style):
        # A Figure of its own draws with Agg and leaves nothing in pyplot's list.
        figure = Figure(figsize=(11.5, 4.4), dpi=150)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08, wspace=0.03)
        throughput, waiting, health = figure.subplots(1, 3)
        draw_throughput(throughput, report)
        draw_waiting(waiting, report)
        draw_health(health, report)
        for axes in (throughput, waiting, health):
            dress(axes, report)
        write_title(figure, report)
        figure.savefig(path, format="png")


def draw_throughput(axes: Axes, report: Report) -> None:
    """Draw output tokens per second."""
    axes.set_title("Output throughput", loc="left", fontweight="bold")
    axes.set_ylabel("tokens per second, all clients")
    levels = list_levels(report)
    for index, server in enumerate(report.servers):
        axes.plot(
            [levels.index(level.concurrency) for level in server.levels],
            [level.tokens_per_second for level in server.levels],
            color=COLORS[index % len(COLORS)],
            marker="o",
            markersize=5,
            linewidth=1.3,
            label=server.label,
        )
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)


def draw_waiting(axes: Axes, report: Report) -> None:
    """Draw how long clients wait, for the first token and for each other."""
    axes.set_title("Waiting for tokens", loc="left", fontweight="bold")
    axes.set_ylabel("ms (marker: median, whisker: p99)")
    draw_durations(axes, report, "ttft_seconds", marker="o", line="-", shift=-0.03)
    draw_durations(axes, report, "itl_seconds", marker="s", line=":", shift=0.03)
    for name, marker, line in (("first token", "o", "-"), ("inter-token", "s", ":")):
        axes.plot([], [], color="#666666", marker=marker, linestyle=line, label=name)
    if axes.lines:
        axes.legend(frameon=False, loc="best", fontsize=8)


def draw_health(axes: Axes, report: Report) -> None:
    """Draw how long /health takes under that load."""
    axes.set_title("GET /health under load", loc="left", fontweight="bold")
    axes.set_ylabel("ms (marker: median, whisker: p99)")
    draw_durations(axes, report, "health_seconds", marker="o", line="-", shift=0.0)


def draw_durations(
    axes: Axes, report: Report, name: str, *, marker: str, line: str, shift: float
) -> None:
    """Draw medians with whiskers up to p99, in milliseconds on a log scale."""
    axes.set_yscale("log")
    levels = list_levels(report)
    for index, server in enumerate(report.servers):
        seen = [
            (levels.index(level.concurrency), durations)
            for level in server.levels
            if (durations := getattr(level, name)) is not None and durations.median > 0
        ]
        # Servers stand beside each other, or their whiskers would hide one another.
        beside = 0.12 * (index - (len(report.servers) - 1) / 2) + shift
        medians = [1000 * durations.median for _, durations in seen]
        above = [1000 * (durations.p99 - durations.median) for _, durations in seen]
        axes.errorbar(
            [position + beside for position, _ in seen],
            medians,
            yerr=[[0.0] * len(seen), above],
            color=COLORS[index % len(COLORS)],
            marker=marker,
            markersize=5,
            linestyle=line,
            linewidth=1.3,
            elinewidth=1,
            capsize=3,
        )


def dress(axes: Axes, report: Report) -> None:
    """Give a panel the axis that all share: one tick a level, evenly apart."""
    levels = list_levels(report)
    axes.set_xticks(range(len(levels)), [str(level) for level in levels])
    axes.set_xlim(-0.4, len(levels) - 0.6)
    axes.set_xlabel("concurrent clients")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.get_yscale() == "log":
        label_decades(axes)


def label_decades(axes: Axes) -> None:
    """Give a log axis plain numbers, and room for two of them however alike they are."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_ylim()
    if high / low < 10:
        low, high = low / 2, max(high * 2, low * 5)
        axes.set_ylim(low, high)
    subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def write_title(figure: Figure, report: Report) -> None:
    """Name the load above the panels and the servers below them."""
    figure.suptitle(
        f"Closed-loop load: {describe_load(report.load)}",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=6, frameon=False
        )


# ---- the command line ----------------------------------------------------------------


def load_reports(paths: Sequence[Path]) -> list[Report]:
    """Read saved reports.

    Raises:
      ValueError: a file is not one of ours.
    """
    reports = []
    for path in paths:
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=Report))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} is not a saved result: {error}") from error
    return reports


def check_same(loads: Iterable[Load]) -> None:
    """Refuse to compare servers that were not asked for the same.

    How often and at which levels they were asked may differ.

    Raises:
      ValueError: the requests of two loads are not alike.
    """
    kinds = list(dict.fromkeys(describe_load(load) for load in loads))
    if len(kinds) > 1:
        raise ValueError(f"results of different loads: {'; '.join(kinds)}")


def check_folders(paths: Iterable[Path | None]) -> None:
    """Refuse to start a run whose results could not be saved.

    Raises:
      ValueError: a file's folder does not exist.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path.parent} is not a folder")


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put the servers of several reports side by side, each under a label of its own."""
    servers: list[ServerReport] = []
    for number, report in enumerate(reports, start=1):
        taken = {server.label for server in servers}
        for server in report.servers:
            clash = f"{server.label} ({number})"
            label = clash if server.label in taken else server.label
            servers.append(replace(server, label=label))
    return replace(
        reports[0],
        created=", ".join(dict.fromkeys(report.created for report in reports)),
        machine=", ".join(dict.fromkeys(report.machine for report in reports)),
        is_cut=any(report.is_cut for report in reports),
        servers=tuple(servers),
    )


def list_failed(report: Report) -> list[str]:
    """List the servers that answered no measured request."""
    return [
        server.label
        for server in report.servers
        if not any(level.num_requests for level in server.levels)
    ]


def read_levels(text: str) -> tuple[int, ...]:
    """Read 1,16,64."""
    levels = tuple(int(each) for each in text.split(","))
    if min(levels) < 1 or len(set(levels)) < len(levels):
        raise argparse.ArgumentTypeError("wants different numbers from 1 up")
    return levels


def read_positive(text: str) -> int:
    """Read a number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("wants a number from 1 up")
    return number


def read_count(text: str) -> int:
    """Read a number from 0 up."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("wants a number from 0 up")
    return number


def read_seconds(text: str) -> float:
    """Read a time above zero."""
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("wants seconds above 0")
    return seconds


def read_servers(
    texts: Sequence[str], label: str | None, model: str | None
) -> list[Server]:
    """Read [LABEL=]URL; a URL without a label is called after its host and port.

    Raises:
      ValueError: a URL is not one, or two servers would have one label.
    """
    servers: list[Server] = []
    for text in texts:
        match = re.fullmatch(r"(?:([^=:/]+)=)?(https?://[^/]+.*)", text)
        if match is None:
            raise ValueError(f"{text!r} is not [LABEL=]http://HOST:PORT")
        url = match[2]
        servers.append(
            Server(
                label=match[1] or label or urlsplit(url).netloc,
                url=url,
                model=model,
                turn=sum(url == earlier.url for earlier in servers),
            )
        )
    labels = [server.label for server in servers]
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels must differ: {', '.join(labels)}")
    return servers


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--url", action="append", metavar="[LABEL=]URL", help="may be repeated")
    add("--label", help="names the server where there is one --url")
    add("--model", help="by default the first of /v1/models")
    add("--endpoint", choices=("chat", "completions"), default="chat")
    add("--concurrency", type=read_levels, default=(1, 16, 64), metavar="1,16,64")
    add("--rounds", type=read_positive, default=1, help="times that a level is run")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--requests", type=read_positive, help="of a round; default max(8, 4 * clients)"
    )
    ends.add_argument(
        "--duration", type=read_seconds, help="seconds in which requests are sent"
    )
    add("--warmup", type=read_count, default=2, help="requests that are not measured")
    add("--input-words", type=read_positive, default=128)
    add("--shared-prefix-words", type=read_count, default=0, help="before the others")
    add("--output-tokens", type=read_positive, default=64)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0)
    add("--timeout", type=read_seconds, default=900.0, help="seconds for everything")
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--plot", type=Path, metavar="FILE.png", help="draw the result")
    add(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE.json",
        help="saved results to set beside this run's; without --url nothing is run",
    )
    return parser


def read_load(options: argparse.Namespace) -> Load:
    """Pick the options that describe the load."""
    return Load(**{each.name: getattr(options, each.name) for each in fields(Load)})


def gather(options: argparse.Namespace) -> Report:
    """Run what is to be run, read what is to be read, and put them together.

    Raises:
      ValueError: options or files make no sense.
      ServerUnusable: a server cannot be measured.
    """
    urls = options.url or ([] if options.compare else ["http://127.0.0.1:8000"])
    if options.label and len(urls) != 1:
        raise ValueError("--label names one server; write --url LABEL=URL for several")
    servers = read_servers(urls, options.label, options.model)
    check_folders((options.json, options.plot))
    reports = load_reports(options.compare)
    loads = [report.load for report in reports]
    check_same([read_load(options), *loads] if servers else loads)
    if servers:
        reports.insert(0, trio.run(measure, read_load(options), servers))
        if options.json:
            options.json.write_bytes(msgspec.json.encode(reports[0]))
    elif options.json:
        raise ValueError("--json saves a run; give a --url")
    return merge_reports(reports)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        report = gather(options)
    except (ValueError, OSError, ServerUnusable) as error:
        print(f"serving.py: {error}", file=sys.stderr)
        return 2
    print(render_report(report))
    if options.plot:
        save_plot(report, options.plot)
    failed = list_failed(report)
    if failed or not report.servers:
        print(f"no request succeeded: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
