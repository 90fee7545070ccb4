"""The rule by which a sequence that repeats itself ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import InvalidParameter

# A pattern of this length is a page of text. The memory and the time of a look for
# patterns grow with it.
MAX_PATTERN_SIZE: Final = 1024
MAX_PATTERN_COUNT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """End a sequence whose last tokens are one pattern, several times.

    A short pattern is also a longer one: a token that is repeated 64 times is a pattern of
    16 tokens that is repeated four times. So min_pattern_size is also a bound of the tokens
    that must be repeated.

    Args:
      max_pattern_size: tokens of the longest pattern; 0 looks for none.
      min_pattern_size: tokens of the shortest pattern; 0 is 1.
      min_count: how often the pattern must stand there; 2 or more.

    Raises:
      InvalidParameter: the numbers are out of their bounds, or contradict each other.

    Source: vLLM's SamplingParams.repetition_detection.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        _check("max_pattern_size", self.max_pattern_size, 0, MAX_PATTERN_SIZE)
        # Without a pattern, the others do not matter.
        if not self.is_on:
            return
        _check("min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
        _check("min_count", self.min_count, 2, MAX_PATTERN_COUNT)

    @property
    def is_on(self) -> bool:
        """True if it looks for patterns."""
        return self.max_pattern_size > 0


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidParameter(
            f"repetition_detection.{name}",
            f"must be between {low} and {high}, got {value}",
        )
