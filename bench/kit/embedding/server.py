"""Servers with OpenAI's /v1/embeddings."""

from __future__ import annotations

from array import array
import base64
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
import sys

from kit.embedding.cases import Case, Load
from kit.process import tell
from kit.server import open_server, write_serve_command
import msgspec
import trio

from trioserve.programs.bench.measuring.clients import Round, run_clients
from trioserve.programs.bench.measuring.measured_servers import (
    Server,
    ServerUnusable,
    fetch_model,
)
from trioserve.programs.bench.measuring.probe import HealthProbe
from trioserve.programs.http.client import (
    FAILURES,
    Connection,
    RequestFailed,
    RequestRefused,
    describe,
)

PATH = "/v1/embeddings"
OWN_LABEL = "trioserve"


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
        # Little-endian, as numpy writes it by default.
        vector = array("f", base64.b64decode(self.embedding))
        if sys.byteorder == "big":
            vector.byteswap()
        return vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One request that succeeded.

    Attributes:
      num_tokens: as the server counts them; None if it does not count them.
    """

    seconds: float
    num_tokens: int | None = None


class VectorServer:
    """A server of vectors, with its model."""

    def __init__(self, server: Server, model: str, encoding: str) -> None:
        self._model = model
        self._encoding = encoding
        self.url = server.url
        self.label = server.label
        self.about = f"{server.url}, model {model}"

    async def embed(self, texts: Sequence[str]) -> list[array[float]]:
        """Send one request, and return the vectors.

        Raises:
          one of client.FAILURES
        """
        async with Connection(self.url) as connection:
            data = await connection.fetch("POST", PATH, self.encode(texts))
        answer = msgspec.json.decode(data, type=Answer)
        return [
            msgspec.json.decode(each, type=Embedding).read() for each in answer.data
        ]

    async def run(
        self,
        case: Case,
        requests: Iterable[Sequence[str]],
        probe: HealthProbe | None = None,
    ) -> Round[Timed]:
        """Send the requests, which are lists of texts, from the case's clients."""
        bodies = [self.encode(texts) for texts in requests]
        ask = partial(ask_vectors, case.num_texts)
        return await run_clients(self.url, case.clients, bodies, ask, probe)

    def encode(self, texts: Sequence[str]) -> bytes:
        return msgspec.json.encode(
            {"model": self._model, "input": texts, "encoding_format": self._encoding}
        )


async def ask_vectors(num_texts: int, connection: Connection, body: bytes) -> Timed:
    """Send one request and read its answer.

    Raises:
      RequestFailed: the answer has more or fewer vectors than the request has texts.
    """
    sent = trio.current_time()
    data = await connection.fetch("POST", PATH, body)
    seconds = trio.current_time() - sent
    answer = msgspec.json.decode(data, type=Answer)
    if len(answer.data) != num_texts:
        raise RequestFailed(f"{len(answer.data)} vectors for {num_texts} texts")
    num_tokens = None if answer.usage is None else answer.usage.prompt_tokens
    return Timed(seconds=seconds, num_tokens=num_tokens)


async def ask_nothing(connection: Connection, body: bytes) -> Timed:
    """Send a request that the server refuses, and read the refusal."""
    sent = trio.current_time()
    try:
        await connection.send("POST", PATH, body)
    except RequestRefused as error:
        if error.status >= 500:
            raise
    else:
        raise RequestFailed("the empty request was not refused")
    return Timed(seconds=trio.current_time() - sent)


async def learn_server(server: Server, load: Load) -> VectorServer:
    """Find out the name of a server's model.

    Raises:
      ServerUnusable: the server cannot be reached.
    """
    try:
        async with Connection(server.url) as connection:
            model = server.model or await fetch_model(connection)
    except FAILURES as error:
        raise ServerUnusable(server, describe(error)) from error
    return VectorServer(server, model, load.encoding)


async def compare_vectors(
    server: Server,
    learned: VectorServer,
    texts: Sequence[str],
    expected: Sequence[Sequence[float]],
) -> float:
    """Return the largest difference between the server's and the expected numbers.

    Raises:
      ServerUnusable: the server gives no vectors, or vectors of another size.
    """
    try:
        vectors = await learned.embed(texts)
    except FAILURES as error:
        raise ServerUnusable(server, describe(error)) from error
    sizes = [len(vector) for vector in vectors]
    if sizes != [len(vector) for vector in expected]:
        raise ServerUnusable(server, f"its vectors have other sizes: {sizes}")
    return max(
        abs(number - other)
        for vector, others in zip(vectors, expected)
        for number, other in zip(vector, others)
    )


def write_own_command(load: Load) -> list[str]:
    """Write the command that starts our own server."""
    return write_serve_command(
        load.model, max_model_len=load.max_model_len, num_threads=load.num_threads
    )


@asynccontextmanager
async def open_servers(
    servers: Sequence[Server], serve_command: Sequence[str] | None
) -> AsyncIterator[list[Server]]:
    """Start our own server, if there is a command; yield it and the running ones."""
    async with AsyncExitStack() as stack:
        own = []
        if serve_command is not None:
            tell(f"starting {' '.join(serve_command)}")
            started = await stack.enter_async_context(open_server(serve_command))
            own = [Server(label=OWN_LABEL, url=started.url)]
        yield [*own, *servers]


def list_doubts(case: Case, answers: Iterable[Timed]) -> Iterator[str]:
    """Write a line if the server does not count as many tokens as the case has."""
    counts = [each.num_tokens for each in answers if each.num_tokens is not None]
    counted = sum(counts) / len(counts) if counts else case.num_tokens
    if abs(counted / case.num_tokens - 1) > 0.01:
        yield f"the server counts {counted:.0f} tokens a request, not {case.num_tokens}"
