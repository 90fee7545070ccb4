"""The requests of a load, in the form that each server accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import itertools
import math
from typing import Literal

from kit.generation.answers import stream_answer
from kit.measured_servers import Server, ServerUnusable, fetch_model, has_path
from kit.texts import write_words
import msgspec
import trio

from trioserve.load.client import FAILURES, Connection, RequestRefused, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of every server; one field is one option.

    Attributes:
      requests: of a round; None is `requests_per_client` times the clients.
    """

    endpoint: Literal["chat", "completions"] = "chat"
    concurrency: tuple[int, ...] = (1, 16, 64)
    requests: int | None = None
    requests_per_client: int = 4
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
        """Return the requests of a round at this level; None if --duration ends it."""
        if self.duration is not None:
            return None
        return self.requests or max(8, self.requests_per_client * concurrency)

    def describe(self) -> str:
        """Describe one request; the number of requests may differ between runs."""
        shared = self.shared_prefix_words
        return (
            f"{self.endpoint}, {f'{shared} shared + ' if shared else ''}"
            f"{self.input_words} words in, {self.output_tokens} tokens out, "
            f"temperature {self.temperature:g}"
        )

    def write_prompt(self, *seeds: object) -> str:
        """Write one prompt: the words that all prompts share, then its own."""
        shared = write_words(self.shared_prefix_words, self.seed, "shared")
        return f"{shared} {write_words(self.input_words, self.seed, *seeds)}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The model of one server, and the optional parts of the API that it has."""

    model: str
    has_ignore_eos: bool
    has_stream_options: bool
    has_health: bool

    def encode(self, load: Load, *seeds: object) -> bytes:
        """Write the JSON body of one streaming request; seeds choose the prompt."""
        prompt = load.write_prompt(*seeds)
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": load.output_tokens,
            "temperature": load.temperature,
            "stream": True,
        }
        if load.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.has_ignore_eos:
            body["ignore_eos"] = True
        if self.has_stream_options:
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)


def issue_bodies(
    load: Load, dialect: Dialect, level: int, *seeds: object
) -> Iterator[bytes]:
    """Yield one round's requests until there are enough or time is up."""
    count = load.num_requests(level)
    until = trio.current_time() + (math.inf if load.duration is None else load.duration)
    for index in itertools.count() if count is None else range(count):
        if trio.current_time() >= until:
            return
        yield dialect.encode(load, *seeds, index)


async def learn_dialect(server: Server, load: Load) -> Dialect:
    """Find out whether a server accepts `ignore_eos` and `stream_options`.

    Some servers do not have these fields. Such a server may answer 400; then the field
    is left out. Or it may ignore the field, which the counts of tokens show later.

    Raises:
      ServerUnusable: the server cannot be reached, or refuses every form.
    """
    async with Connection(server.url) as connection:
        try:
            model = server.model or await fetch_model(connection)
            has_health = await has_path(connection, "/health")
            for has_stream_options, has_ignore_eos in itertools.product(
                (True, False), repeat=2
            ):
                dialect = Dialect(
                    model=model,
                    has_ignore_eos=has_ignore_eos,
                    has_stream_options=has_stream_options,
                    has_health=has_health,
                )
                if await _understands(connection, load, dialect, server.turn):
                    return dialect
        except FAILURES as error:
            raise ServerUnusable(server, describe(error)) from error
    raise AssertionError("the plainest request is understood, or raises")


async def _understands(
    connection: Connection, load: Load, dialect: Dialect, turn: int
) -> bool:
    body = dialect.encode(load, "dialect", turn)
    try:
        await stream_answer(load.endpoint, connection, body)
    except RequestRefused as error:
        has_extensions = dialect.has_ignore_eos or dialect.has_stream_options
        if error.status in (400, 422) and has_extensions:
            return False
        raise
    return True
