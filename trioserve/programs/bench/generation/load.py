"""The requests of a load, in the form that each server accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import itertools
import math
from typing import Literal

import msgspec
import trio

from ....config.checks import FilePath, check_at_least, check_seconds
from ....errors import InvalidConfig
from ...http.client import FAILURES, Connection, RequestFailed, RequestRefused, describe
from ..measuring.measured_servers import Server, ServerUnusable, fetch_model, has_path
from ..measuring.texts import write_words
from .answers import stream_answer

# Enough for a median; --requests says more.
_ARRIVALS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load.

    Args:
      endpoint: Endpoint that is asked.
      concurrency: Numbers of clients, one level each. A client sends its next request when
        it has its answer.
      request_rate: Rates in requests a second, one level each, in place of --concurrency.
        Requests arrive as a Poisson process, whether earlier ones have ended or not.
      trace: File with the arrivals of requests, in place of --concurrency: in each line
        the seconds, the input words and the output tokens, with commas between.
      requests: Requests of a round; by default --requests-per-client for each client, and
        100 at a rate.
      requests_per_client: Requests of a round for each client; at least 8 in all.
      duration: Seconds in which requests are sent, in place of a number of requests.
      rounds: Rounds for each level. Several servers take turns.
      warmup: Requests that are sent first and not measured.
      input_words: Words of a prompt; most of them are one token.
      shared_prefix_words: Words at the beginning of every prompt, besides --input-words.
      output_tokens: Tokens of an answer.
      temperature: Temperature of the requests.
      seed: Number on which words and arrivals depend. A server that was not restarted has
        cached the prompts of an earlier run with the same one.
      timeout: Longest time for the whole run, in seconds.
      slo_ttft: Longest time to the first token of a good answer, in seconds.
      slo_tpot: Longest time for each further token of a good answer, in seconds. The
        report then has the good answers a second (goodput).
    """

    endpoint: Literal["chat", "completions"] = "chat"
    concurrency: tuple[int, ...] = (1, 16, 64)
    request_rate: tuple[float, ...] = ()
    trace: FilePath | None = None
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
    slo_ttft: float | None = None
    slo_tpot: float | None = None

    def __post_init__(self) -> None:
        self._check_levels()
        for name in ("requests", "requests_per_client", "rounds", "input_words"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("output_tokens", self.output_tokens, 1)
        check_at_least("warmup", self.warmup, 0)
        check_at_least("shared_prefix_words", self.shared_prefix_words, 0)
        for name in ("duration", "timeout", "slo_ttft", "slo_tpot"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        if self.requests is not None and self.duration is not None:
            raise InvalidConfig("duration", "and --requests exclude each other")

    def _check_levels(self) -> None:
        clients, rates = self.concurrency, self.request_rate
        if not clients or min(clients) < 1 or len({*clients}) < len(clients):
            raise InvalidConfig("concurrency", "takes different numbers of 1 or more")
        for rate in rates:
            if not 0 < rate < math.inf or rates.count(rate) > 1:
                raise InvalidConfig("request_rate", "takes different rates above 0")
        if self.trace is not None and rates:
            raise InvalidConfig("trace", "and --request-rate exclude each other")

    @property
    def is_open(self) -> bool:
        """True if requests arrive by a schedule, and not after each other."""
        return bool(self.request_rate) or self.trace is not None

    def count_arrivals(self) -> int | None:
        """Return the requests of a round at a rate; None if --duration ends it."""
        return None if self.duration is not None else self.requests or _ARRIVALS

    def num_requests(self, concurrency: int) -> int | None:
        """Return the requests of a round at this level; None if --duration ends it."""
        if self.duration is not None:
            return None
        return self.requests or max(8, self.requests_per_client * concurrency)

    def describe(self) -> str:
        """Describe one request; the number of requests may differ between runs."""
        shared = self.shared_prefix_words
        if self.trace is not None:
            return f"{self.endpoint}, trace {self.trace}"
        kind = "Poisson arrivals, " if self.request_rate else ""
        return (
            f"{kind}{self.endpoint}, {f'{shared} shared + ' if shared else ''}"
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
    async with Connection(server.url, key=server.key) as connection:
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
        except (RequestFailed, msgspec.DecodeError) as error:
            raise ServerUnusable(server, describe(error)) from error
        except FAILURES as error:
            reason = f"no server answers: {describe(error)}"
            raise ServerUnusable(server, reason) from error
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
