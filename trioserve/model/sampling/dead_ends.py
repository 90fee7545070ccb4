"""Find the sequences for which no token is left.

Several parameters of a request exclude tokens. If they exclude every token together, any
choice would be wrong, and the sequence ends with an error. The host learns that with the
tokens of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...types.output import SequenceError
from .choice import Choice
from .host_copy import HostCopy


def list_exclusions(
    choices: Sequence[Choice], num_outputs: Sequence[int]
) -> dict[int, list[str]]:
    """Return, by row, the fields of requests that may exclude tokens in this step."""
    return {
        row: choice.list_exclusions(count)
        for row, (choice, count) in enumerate(zip(choices, num_outputs))
        if choice.has_exclusions or count < choice.stops_from
    }


def find_dead_ends(scores: Tensor) -> Tensor:
    """Return whether no token is left, (num_rows,) bool.

    Args:
      scores: (num_rows, vocab_size), -inf for excluded tokens
    """
    # To look at all rows takes less time than to copy some of them.
    return scores.amax(dim=-1) == -float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnds:
    """The rows of a step whose sequences may be unable to go on.

    Args:
      exclusions: row -> the fields of its request that exclude tokens.
      is_dead: (num_rows,) bool, whether no token is left for a row.
      errors: row -> why its sequence cannot go on, if that is known before.
    """

    exclusions: dict[int, list[str]]
    is_dead: HostCopy
    errors: dict[int, SequenceError] = field(default_factory=dict)

    def read_errors(self) -> dict[int, SequenceError]:
        """Wait for the step, and return all errors by row."""
        is_dead = self.is_dead.read().tolist()
        found = {
            row: SequenceError.exclude_all(names)
            for row, names in self.exclusions.items()
            if is_dead[row]
        }
        return found | self.errors
