"""The times at which requests of an open loop fall due, whatever the server does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import itertools
import math

from ....errors import InvalidConfig
from ..measuring.texts import open_chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request.

    Attributes:
      due: seconds from the beginning of the round.
      input_words, output_tokens: its own lengths; None for the load's lengths.
    """

    due: float
    input_words: int | None = None
    output_tokens: int | None = None


def draw_arrivals(
    rate: float, count: int | None, seconds: float | None, *seeds: object
) -> Iterator[Arrival]:
    """Draw the arrivals of a Poisson process; equal seeds give equal arrivals.

    Args:
      rate: requests a second.
      count, seconds: the end; None for no end of this kind.
    """
    chance = open_chance("arrivals", *seeds)
    due = 0.0
    for _ in itertools.count() if count is None else range(count):
        due += chance.expovariate(rate)
        if due >= (math.inf if seconds is None else seconds):
            return
        yield Arrival(due=due)


def read_trace(path: str) -> tuple[Arrival, ...]:
    """Read a trace: in each line the seconds, the input words and the output tokens.

    Raises:
      InvalidConfig: the file cannot be read, or a line is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig.of_file("trace", "read", path, error) from error
    found = [
        _read_arrival(path, number, line)
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith("#")
    ]
    if not found:
        raise InvalidConfig("trace", f"{path} has no requests")
    return tuple(sorted(found, key=lambda each: each.due))


def _read_arrival(path: str, number: int, line: str) -> Arrival:
    try:
        due, words, tokens = line.split(",")
        found = Arrival(
            due=float(due), input_words=int(words), output_tokens=int(tokens)
        )
    except ValueError:
        found = Arrival(due=-1.0, input_words=0, output_tokens=0)
    assert found.input_words is not None and found.output_tokens is not None
    if not (
        0 <= found.due < math.inf and found.input_words > 0 and found.output_tokens > 0
    ):
        raise InvalidConfig(
            "trace",
            f"line {number} of {path} is not like 0.5,128,64: seconds, input words, "
            "output tokens",
        )
    return found
