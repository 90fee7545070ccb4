"""The block tables of running sequences: blocks for their tokens, shared by prefix.

Invariant: plans are executed in the order in which they were made, by every stage of a
pipeline, and within a step every layer writes all keys and values before it reads any. So

* the blocks of a sequence are free as soon as it has ended or is preempted, even if steps
  in flight still have rows for it: the next owner of a block writes it in a later step;
* a row's full blocks of known tokens are registered in the prefix cache when the row is
  planned, before it is computed: a sequence that finds such a block reads it in a later
  step, or in a later row of the same step. Each stage of a pipeline holds its own layers'
  part of the block, and writes it before its own turn at the reader's step;
* a window block (window_blocks.py) is free as soon as no token that will be planned sees it,
  even if steps in flight have rows that do: its next owner writes it in a later step than
  theirs. Nobody tells the device, whose table keeps the old entry and is never read there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
import itertools

from ...types.ids import BlockId
from .blocks import BlockPool, PoolNeed
from .checkpoints import Checkpoints
from .sequence import Sequence
from .spans import NO_SPANS
from .window_blocks import WindowBlocks


@dataclass(frozen=True, slots=True)
class BlockNeed:
    """The blocks that a waiting sequence needs, and the blocks that are free for it.

    Args:
      blocks: for the tokens that it has.
      windows: for its window, if layers have window blocks.
      num_shared: cached blocks with which it begins, though it may go on behind fewer.
    """

    blocks: PoolNeed
    windows: PoolNeed | None
    num_shared: int

    @property
    def num_blocks(self) -> int:
        """Blocks of both kinds that it will hold."""
        num_window = 0 if self.windows is None else self.windows.num_blocks
        return self.blocks.num_blocks + num_window

    def release(self, sequence: Sequence) -> None:
        """Count the blocks that are free once a running sequence has left."""
        self.blocks.release(sequence.block_ids)
        if self.windows is not None:
            self.windows.release(sequence.window_ids)

    def count_lacking(self, num_running: int) -> int:
        """Return how many blocks must become free; zero or less if there are enough.

        Args:
          num_running: sequences that stay.
        """
        lacking = self.blocks.count_lacking(num_running)
        if self.windows is None:
            return lacking
        return max(0, lacking) + max(0, self.windows.count_lacking(num_running))


class BlockTables:
    """Gives sequences the blocks for their tokens, and takes them back.

    Args:
      num_blocks: size of the pool.
      block_size: tokens in one block.
      prefix_caching: share full blocks by content.
      num_checkpoints: copies of states; None if the model has no states.
      windows: the blocks of layers with windows; None if these have the same blocks as all
        others.

    Attributes:
      num_queried_tokens: tokens of admitted sequences that were looked up.
      num_hit_tokens: how many of them were found.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool,
        num_checkpoints: int | None = None,
        windows: WindowBlocks | None = None,
    ) -> None:
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._windows = windows
        self._num_checkpoints = num_checkpoints
        self._checkpoints = (
            None if num_checkpoints is None else Checkpoints(num_checkpoints)
        )

    def begin_step(self, running: Iterable[Sequence]) -> None:
        """Begin to plan a step: take back the blocks that no row needs any more."""
        if self._windows is not None:
            self._windows.give_back(running)
        if self._checkpoints is not None:
            self._checkpoints.begin_step()

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self._pool.num_used

    @property
    def num_window_blocks(self) -> int:
        """Blocks of layers with windows."""
        return 0 if self._windows is None else self._windows.pool.num_blocks

    @property
    def num_used_window_blocks(self) -> int:
        """Blocks of layers with windows that sequences hold."""
        return 0 if self._windows is None else self._windows.pool.num_used

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their content."""
        return self._pool.num_cached

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Hash the prompts of new sequences; touches nothing but these sequences."""
        if not self._prefix_caching:
            return
        by_prompt: dict[int, Sequence] = {}
        for sequence in sequences:
            sibling = by_prompt.setdefault(id(sequence.prompt_token_ids), sequence)
            sequence.hash_prompt(
                self._block_size, None if sibling is sequence else sibling
            )

    def count_found(self, sequence: Sequence) -> int:
        """Return how many tokens of a waiting sequence are in the prefix cache."""
        num_shared = len(self._list_cached(sequence))
        return self._block_size * self._count_usable(sequence, num_shared)

    def admit(self, sequence: Sequence, num_running: int) -> bool:
        """Give a waiting sequence the blocks of all its tokens, if enough are free."""
        need = self.find_need(sequence)
        if need.count_lacking(num_running) > 0:
            return False
        num_found = len(need.blocks.cached)
        sequence.block_ids = need.blocks.take()
        sequence.num_computed = num_found * self._block_size
        sequence.num_registered_blocks = num_found
        sequence.junction = need.num_shared * self._block_size
        if self._windows is not None and need.windows is not None:
            self._windows.admit(sequence, need.windows)
        if self._checkpoints is not None:
            self._restore(sequence, num_found, self._checkpoints)
        return True

    def has_room(self, sequence: Sequence, num_running: int) -> bool:
        """Return whether `admit` succeeds, even if it finds no block in the cache.

        Args:
          num_running: running sequences.
        """
        num_blocks = self._count_blocks(sequence.num_tokens)
        if num_blocks + num_running > self._pool.num_free:
            return False
        windows = self._windows
        return windows is None or (
            windows.count_most(num_blocks) + num_running <= windows.pool.num_free
        )

    def find_need(self, sequence: Sequence) -> BlockNeed:
        """Return the blocks that a waiting sequence needs to be admitted."""
        num_blocks = self._count_blocks(sequence.num_tokens)
        cached = self._list_cached(sequence)
        num_shared = len(cached)
        del cached[self._count_usable(sequence, num_shared) :]
        windows = None
        if self._windows is not None:
            windows = self._windows.find_need(sequence, len(cached), num_blocks)
        return BlockNeed(PoolNeed(self._pool, num_blocks, cached), windows, num_shared)

    def count_admission(self, sequence: Sequence) -> None:
        """Count the prefix of a sequence that was admitted for the first time."""
        if self._prefix_caching:
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += sequence.num_computed

    def list_growing(
        self, decoding: list[Sequence], prompts: list[Sequence]
    ) -> list[Sequence]:
        """Return the sequences that need another block for their planned tokens."""
        size, windows = self._block_size, self._windows
        return [
            sequence
            for sequence in itertools.chain(decoding, prompts)
            if sequence.num_planned > size * len(sequence.block_ids)
            or (
                windows is not None
                and sequence.num_planned > size * sequence.end_of_window_blocks
                and windows.count_missing(sequence) > 0
            )
        ]

    def can_extend(self, sequences: Iterable[Sequence]) -> bool:
        """Return whether there are enough free blocks for `extend`."""
        sequences, windows = list(sequences), self._windows
        if self._pool.num_free < sum(map(self._count_missing, sequences)):
            return False
        return windows is None or windows.can_extend(sequences)

    def extend(self, sequences: Iterable[Sequence]) -> None:
        """Give sequences the blocks that they need for their planned tokens."""
        for sequence in sequences:
            sequence.block_ids += self._pool.allocate(self._count_missing(sequence))
            if self._windows is not None:
                self._windows.extend(sequence)

    def register(self, sequences: Iterable[Sequence]) -> None:
        """Let other sequences find the full blocks whose tokens are known and planned."""
        if not self._prefix_caching:
            return
        size = self._block_size
        for each in sequences:
            # Most tokens fill no block.
            if each.num_tokens >= size * (each.num_registered_blocks + 1):
                self._register(each)

    def _register(self, sequence: Sequence) -> None:
        num_tokens = min(sequence.num_computed, sequence.num_tokens)
        first, end = sequence.num_registered_blocks, num_tokens // self._block_size
        if first >= end:
            return
        for index in range(first, end):
            block_hash = sequence.hashes.get(index, self._block_size)
            self._pool.register(sequence.block_ids[index], block_hash)
            if self._windows is not None:
                self._windows.register(sequence, index, block_hash)
        sequence.num_registered_blocks = end

    def cut_chunk(self, sequence: Sequence, num_tokens: int) -> tuple[int, int | None]:
        """Cut a prompt's chunk where a later sequence may go on.

        That is where the last full block before the last token ends, and where the blocks end
        that the sequence shares with others.

        Returns:
          its tokens
          the copy to be made of the states behind it; None without one
        """
        if self._checkpoints is None or not self._prefix_caching:
            return num_tokens, None
        size, begin = self._block_size, sequence.num_computed
        last = (sequence.num_tokens - 1) // size * size
        borders = [
            each
            for each in (sequence.junction, last)
            if each > begin and not sequence.spans.is_inside(each)
        ]
        end = min([begin + num_tokens, *borders])
        if end % size or end > last:
            return end - begin, None
        block_hash = sequence.hashes.get(end // size - 1, size)
        return end - begin, self._checkpoints.plan(
            block_hash, is_passing=end not in borders
        )

    def release(self, sequence: Sequence) -> None:
        """Take back the slot and the blocks of a sequence."""
        if self._windows is not None:
            self._windows.release(sequence)
        self._pool.release(sequence.give_up())

    def forget(self) -> None:
        """Forget the content of all blocks and copies; no sequence may hold one."""
        self._pool.forget()
        if self._windows is not None:
            self._windows.pool.forget()
        if self._checkpoints is not None:
            self._checkpoints.forget()

    def count_lost(self, sequences: Iterable[Sequence]) -> int:
        """Return how many blocks are not free, though none of these sequences has them."""
        sequences = list(sequences)
        held = {block_id for each in sequences for block_id in each.block_ids}
        num_lost = self.num_used - len(held)
        if self._windows is not None:
            num_lost += self._windows.count_lost(sequences)
        return num_lost

    def check(self, running: Iterable[Sequence]) -> None:
        """Assert every invariant of the blocks."""
        running = list(running)
        self._pool.check(sequence.block_ids for sequence in running)
        for sequence in running:
            needed = self._count_blocks(sequence.num_computed)
            assert len(sequence.block_ids) >= needed, "computed tokens have blocks"
        if self._windows is not None:
            self._windows.check(running)
        if self._checkpoints is not None:
            self._checkpoints.check(self._num_checkpoints or 0)

    def _restore(
        self, sequence: Sequence, num_found: int, checkpoints: Checkpoints
    ) -> None:
        """Let an admitted sequence go on with the states behind its blocks."""
        sequence.checkpoint = None
        if num_found:
            block_hash = sequence.hashes.get(num_found - 1, self._block_size)
            sequence.checkpoint = checkpoints.use(block_hash)

    def _count_usable(self, sequence: Sequence, num_shared: int) -> int:
        """Return how many of its cached blocks a sequence can go on behind."""
        if self._windows is not None:
            return self._windows.find_end(sequence, num_shared, self._can_go_on)
        while num_shared and not self._can_go_on(sequence, num_shared):
            num_shared -= 1
        return num_shared

    def _can_go_on(self, sequence: Sequence, num_blocks: int) -> bool:
        """Return whether a sequence can go on behind blocks, by its images and states."""
        end = num_blocks * self._block_size
        if sequence.spans is not NO_SPANS and sequence.spans.is_inside(end):
            return False
        if self._checkpoints is None:
            return True
        block_hash = sequence.hashes.get(num_blocks - 1, self._block_size)
        return self._checkpoints.find(block_hash) is not None

    def _list_cached(self, sequence: Sequence) -> list[BlockId]:
        """Return the longest chain of cached blocks with which the sequence begins."""
        # The logprobs of cached prompt tokens were never kept.
        if not self._prefix_caching or sequence.sampling.prompt_logprobs is not None:
            return []
        # The last token is always computed: its logits give the next one.
        matched: list[BlockId] = []
        for index in range((sequence.num_tokens - 1) // self._block_size):
            block_id = self._pool.find(sequence.hashes.get(index, self._block_size))
            if block_id is None:
                break
            matched.append(block_id)
        return matched

    def _count_missing(self, sequence: Sequence) -> int:
        needed = self._count_blocks(sequence.num_planned) - len(sequence.block_ids)
        return max(0, needed)

    def _count_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
