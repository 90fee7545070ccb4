"""The plan of one step, from the scheduler to the device.

The cost of a step must not depend on the length of an output. So a plan names a sequence by
its *slot* (a row of the tables that the runner keeps) and carries only the news of the slot.

A plan and its rows are msgspec structs. Making a frozen dataclass takes twelve times as
long, which was 0.3 of the 0.7 ms that a step of 128 rows cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .adapter import NO_ADAPTER
from .ids import BlockId
from .prompt import EmbeddedInput
from .sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStart:
    """A sequence that takes a slot, with all facts that the runner needs about it.

    It is sent when a sequence is admitted, and again after a preemption; then
    `output_token_ids` has the tokens that the sequence had already.

    Args:
      slot: row of the runner's tables, below max_num_seqs.
      seed: the noise of the i-th output token is a function of (seed, i) alone, so that
        neither the batch nor a preemption changes the sampled tokens.
      stop_token_ids: all ids that must not be sampled before min_tokens.
      embedded: as in Prompt.
      restores: the copy of states with which it goes on; None if it begins, or if the model
        has no states.
      first_window_block: the place of the first block in its table of window blocks: the
        blocks before it lie behind the windows of all tokens to come.
      adapter: the number of the sequence's adapter; see types.adapter.
    """

    slot: int
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    embedded: tuple[EmbeddedInput, ...] = ()
    restores: int | None = None
    first_window_block: int = 0
    adapter: int = NO_ADAPTER


class StepRow(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The part of a step that belongs to one sequence.

    The tokens at positions [start, start + num_tokens) of the slot are computed and
    their keys and values are written. `new_block_ids` follow the blocks that the slot's
    block table holds already, and `new_window_ids` those of its table of window blocks,
    which layers with windows have for themselves. With `sample`, the chunk ends at the last planned token of
    the sequence and the next one is sampled; the runner appends it to the slot. `saves`
    names the copy to be made of the states behind the chunk.
    """

    slot: int
    start: int
    num_tokens: int
    new_block_ids: tuple[BlockId, ...]
    sample: bool
    saves: int | None = None
    new_window_ids: tuple[BlockId, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The work of one step: `ends`, then `starts`, then `rows` in batch order.

    Args:
      ends: slots whose sequences have left while the runner may still keep large data of
        them: vectors that no row has read, and the state of a grammar. Without them the
        runner would keep these until the slots are taken again.
    """

    step_id: int
    starts: tuple[SlotStart, ...]
    rows: tuple[StepRow, ...]
    ends: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_sampled(self) -> int:
        """Number of rows that sample."""
        return sum(row.sample for row in self.rows)
