"""A step while it is planned."""

from __future__ import annotations

import math

from ...types.plan import SlotStart, StepRow
from ..step_cost import StepCost, StepSize
from .sequence import Flow, Sequence
from .spans import NO_SPANS


def count_context(sequences: list[Sequence]) -> int:
    """Return the number of computed tokens of all sequences together."""
    return sum([sequence.num_computed for sequence in sequences])


class Draft:
    """The rows of a step that is being planned, and the room for more of them.

    Args:
      step_id: number of the step.
      num_tokens: the most tokens of the step.
      block_size: the fewest tokens of a chunk, unless the prompt ends with it.
      cost: predicts how long rows take.

    Attributes:
      num_tokens: tokens that the step can still take.
      seconds: time for further rows; infinite without a limit.
      prompt_flows: requests whose prompts have had their turn.
      num_cached: tokens that were found in the prefix cache.
      is_closed: no further sequence can be admitted.
      is_typical: the step's duration depends on its size alone.
    """

    def __init__(
        self, step_id: int, num_tokens: int, block_size: int, cost: StepCost
    ) -> None:
        self.step_id = step_id
        self.num_tokens = num_tokens
        self.seconds = math.inf
        self.prompt_flows: set[Flow] = set()
        self.num_cached = 0
        self.is_closed = False
        self.is_typical = True
        self.starts: list[SlotStart] = []
        self.rows: list[StepRow] = []
        self.sequences: list[Sequence] = []
        self.size = StepSize()
        self._block_size = block_size
        self._cost = cost
        self._has_chunk = False

    @property
    def has_room(self) -> bool:
        """True if the step can take a chunk of another prompt; the first always fits."""
        if self.num_tokens <= 0 or self.seconds == math.inf or not self._has_chunk:
            return self.num_tokens > 0
        return self._count_tokens(0) >= self._block_size

    def measure_chunk(self, sequence: Sequence) -> int:
        """Return how many tokens of a prompt the step has room for."""
        limit = min(sequence.num_uncomputed, self.num_tokens)
        if self.seconds == math.inf:
            return limit
        start = sequence.num_computed
        num_tokens = self._count_tokens(start)
        if num_tokens >= limit:
            return limit
        # Chunks end at block borders, so that other sequences find whole blocks.
        num_tokens -= (start + num_tokens) % self._block_size
        return min(limit, max(num_tokens, self._block_size))

    def keep_whole(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many tokens of a chunk remain if it divides no image.

        An image at the beginning of a chunk is computed whole, whatever time it takes, if it
        is the step's first chunk. So the first prompt in line always goes on.

        Returns:
          0 if the image at its beginning has no room in this step
        """
        if sequence.spans is NO_SPANS:
            return num_tokens
        start = sequence.num_computed
        end = sequence.spans.step_back(start + num_tokens)
        if end > start:
            return end - start
        whole = sequence.spans.step_on(start + num_tokens) - start
        has_time = (
            self.seconds == math.inf
            or not self._has_chunk
            or whole <= self._count_tokens(start)
        )
        return whole if whole <= self.num_tokens and has_time else 0

    def measure_share(self, num_tokens: int) -> int:
        """Return how many tokens of a long prompt's chunk shorter prompts may have.

        Half of them. If that is less than a block, the long prompt gives way in every
        second step.
        """
        if num_tokens >= 2 * self._block_size:
            return num_tokens // 2
        return 0 if self.step_id % 2 else num_tokens

    def _count_tokens(self, context: int) -> int:
        """Return how many tokens of a prompt there is time for."""
        return self._cost.count_tokens(context, self.seconds, self.size)

    def add_decoding(self, sequences: list[Sequence]) -> None:
        """Add a row of one token for each sequence."""
        self.num_tokens -= len(sequences)
        self.size.add_decoding(len(sequences), count_context(sequences))
        self._add_rows(sequences, 1)

    def add_chunk(
        self, sequence: Sequence, num_tokens: int, saves: int | None = None
    ) -> None:
        """Add a row with a chunk of a prompt.

        Args:
          saves: as in StepRow.
        """
        context = sequence.num_computed
        self._has_chunk = True
        self.num_tokens -= num_tokens
        self.size.add_row(context, num_tokens)
        if self.seconds < math.inf:
            self.seconds -= self._cost.predict_row(context, num_tokens)
        # The step with the first chunk also encodes the images.
        if sequence.embedded:
            self.is_typical = False
        self._add_rows([sequence], num_tokens, saves)

    def _add_rows(
        self, sequences: list[Sequence], num_tokens: int, saves: int | None = None
    ) -> None:
        """Add a row with the next tokens of each sequence."""
        self.sequences += sequences
        for sequence in sequences:
            assert sequence.slot is not None, "only a running sequence is planned"
            start = sequence.num_computed
            end = sequence.num_computed = start + num_tokens
            samples = end == sequence.num_planned and not sequence.writes_nothing
            self.rows.append(
                StepRow(
                    slot=sequence.slot,
                    start=start,
                    num_tokens=num_tokens,
                    new_block_ids=(
                        sequence.take_new_block_ids()
                        if len(sequence.block_ids) > sequence.num_planned_blocks
                        else ()
                    ),
                    sample=samples,
                    saves=saves,
                    new_window_ids=(
                        sequence.take_new_window_ids() if sequence.window_ids else ()
                    ),
                )
            )
            if samples:
                # A placeholder for the token.
                sequence.num_planned += 1
                sequence.sampled_in = self.step_id
