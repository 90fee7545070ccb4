"""A step in the making."""

from __future__ import annotations

import math

from ...types.plan import SlotStart, StepRow
from ..step_cost import StepCost, StepSize
from .sequence import Flow, Sequence


def count_context(sequences: list[Sequence]) -> int:
    """Return how many tokens are computed of all sequences together."""
    return sum([sequence.num_computed for sequence in sequences])


class Draft:
    """The rows of a step, and what is left for more of them.

    Args:
      num_tokens: tokens of the step.
      block_size: the fewest tokens that a prompt is computed by, unless it ends.
      cost: predicts how long rows take.

    Attributes:
      seconds: time for further rows; infinite where nobody's stream waits for the step.
      prompt_flows: requests whose prompts have had their turn.
      num_cached: tokens that were found in the prefix cache.
      is_closed: no further sequence can be admitted.
      is_typical: its time depends on its size alone.
    """

    def __init__(self, num_tokens: int, block_size: int, cost: StepCost) -> None:
        self.num_tokens = num_tokens
        self._block_size = block_size
        self.seconds = math.inf
        self.prompt_flows: set[Flow] = set()
        self.num_cached = 0
        self.is_closed = False
        self.is_typical = True
        self.starts: list[SlotStart] = []
        self.rows: list[StepRow] = []
        self.sequences: list[Sequence] = []
        self.size = StepSize()
        # No prompt has a chunk yet.
        self._is_first = True
        self._cost = cost

    @property
    def has_room(self) -> bool:
        """Whether a further prompt can be begun or go on; the first always can."""
        if self.num_tokens <= 0 or self.seconds == math.inf or self._is_first:
            return self.num_tokens > 0
        return self.count_tokens(0) >= self._block_size

    def count_tokens(self, context: int) -> int:
        """Return how many tokens of a prompt there is time for."""
        return self._cost.count_tokens(context, self.seconds, self.size)

    def add_decoding(self, sequences: list[Sequence]) -> None:
        """Count rows of one token, which are added by `add`."""
        self.num_tokens -= len(sequences)
        self.size.add_decoding(len(sequences), count_context(sequences))

    def add_chunk(self, sequence: Sequence, num_tokens: int) -> None:
        """Count a chunk of a prompt, which is added by `add`."""
        context = sequence.num_computed
        self._is_first = False
        self.num_tokens -= num_tokens
        self.size.add_row(context, num_tokens)
        if self.seconds < math.inf:
            self.seconds -= self._cost.predict_row(context, num_tokens)
        # Images are encoded with the first chunk, which takes longer by as much.
        if sequence.embedded:
            self.is_typical = False

    def add(self, sequence: Sequence, start: int, samples: bool) -> None:
        assert sequence.slot is not None, "only a running sequence is planned"
        self.sequences.append(sequence)
        self.rows.append(
            StepRow(
                slot=sequence.slot,
                start=start,
                num_tokens=sequence.num_computed - start,
                new_block_ids=sequence.take_new_block_ids(),
                sample=samples,
            )
        )
