"""The blocks of layers with windows, which sequences give back behind their windows.

    block    0     1     2     3     4     5     6     7
             given back  | window    | next chunk |
                         ^ Sequence.window_begin

A sequence holds blocks in a row, as many as the window and the largest chunk need. They are
found by the same hashes as all other blocks. Behind a prefix, only the blocks that the next
token sees are needed.

Blocks that are given back while their sequence goes on stay in the prefix cache. Most of them are
passing (blocks.py): otherwise a long prompt or answer would replace the ends of all other chats. A
later prompt is likely to go on behind the end of a prompt, because templates leave out reasoning,
and behind the part of a prompt that others have shared before. The windows of these two places stay
as long as the ends of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...types.windows import SPARE_BLOCKS, count_window_blocks
from .blocks import BlockPool, PoolNeed
from .sequence import Sequence


class WindowBlocks:
    """The pool of window blocks, and the rules by which sequences hold them.

    Args:
      num_blocks: size of the pool.
      block_size: tokens in one block.
      window: the most keys that a query of these layers sees.
      max_chunk: tokens of a sequence in one step.
    """

    def __init__(
        self, num_blocks: int, block_size: int, window: int, max_chunk: int
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._window = window
        self._most_held = count_window_blocks(window, max_chunk, block_size)

    def find_first(self, query: int) -> int:
        """Return the number of the first block that a token sees."""
        return max(0, query - self._window + 1) // self._block_size

    def has_room_for(self, num_blocks: int) -> bool:
        """Return whether a sequence of so many blocks can run alone."""
        return self.pool.num_blocks >= self.count_most(num_blocks)

    def count_most(self, num_blocks: int) -> int:
        """Return how many a sequence of so many blocks holds at most."""
        return min(num_blocks, self._most_held)

    def find_need(
        self, sequence: Sequence, num_found: int, num_blocks: int
    ) -> PoolNeed:
        """Return the window blocks that a waiting sequence needs to be admitted.

        Args:
          num_found: blocks of the prefix behind which it goes on; those that the next token
            sees are cached.
          num_blocks: blocks of all its tokens.
        """
        size = self._block_size
        begin = self.find_first(num_found * size)
        cached = [
            self.pool.find(sequence.hashes.get(i, size))
            for i in range(begin, num_found)
        ]
        found = [block_id for block_id in cached if block_id is not None]
        assert len(found) == len(cached), "the window of the next token is cached"
        return PoolNeed(self.pool, self.count_most(num_blocks - begin), found)

    def find_end(
        self,
        sequence: Sequence,
        num_found: int,
        is_usable: Callable[[Sequence, int], bool],
    ) -> int:
        """Return how many of the found blocks a sequence can go on behind.

        It looks at each block once, from the last one on.

        Args:
          num_found: blocks of a prefix that other layers have.
          is_usable: tells whether it can go on behind so many for other reasons.
        """
        size = self._block_size
        # Window blocks [first, end) are cached.
        first = end = num_found
        while end > 0:
            wanted = self.find_first(end * size)
            while first > wanted and self._has(sequence, first - 1):
                first -= 1
            if first > wanted:
                # A prefix that ends behind the missing block would need it, too.
                first = end = first - 1
            elif is_usable(sequence, end):
                break
            else:
                end -= 1
                first = min(first, end)
        return end

    def _has(self, sequence: Sequence, index: int) -> bool:
        block_hash = sequence.hashes.get(index, self._block_size)
        return self.pool.find(block_hash) is not None

    def admit(self, sequence: Sequence, need: PoolNeed) -> None:
        """Give an admitted sequence its blocks."""
        sequence.window_ids = need.take()
        sequence.window_begin = self.find_first(sequence.num_computed)

    def count_missing(self, sequence: Sequence) -> int:
        """Return how many more blocks a running sequence needs for its next tokens."""
        num_blocks = -(-sequence.num_planned // self._block_size)
        wanted = self.count_most(num_blocks - sequence.window_begin)
        return wanted - len(sequence.window_ids)

    def can_extend(self, sequences: Iterable[Sequence]) -> bool:
        """Return whether there are enough free blocks for `extend`."""
        missing = sum(max(0, self.count_missing(each)) for each in sequences)
        return self.pool.num_free >= missing

    def extend(self, sequence: Sequence) -> None:
        """Give a running sequence the blocks that it needs for its next tokens."""
        missing = self.count_missing(sequence)
        if missing > 0:
            sequence.window_ids += self.pool.allocate(missing)

    def give_back(self, sequences: Iterable[Sequence]) -> None:
        """Take back the blocks that no token to come sees."""
        size, num_behind = self._block_size, self._window - 1
        for sequence in sequences:
            # The device may skip rows; then the last known token is computed again.
            query = min(sequence.num_computed, sequence.num_tokens - 1)
            first = (query - num_behind) // size - SPARE_BLOCKS
            if first > sequence.window_begin:
                self._give_back(sequence, first)

    def _give_back(self, sequence: Sequence, first: int) -> None:
        begin, ids = sequence.window_begin, sequence.window_ids
        kept = self._list_likely(sequence)
        for index, block_id in zip(range(begin, first), ids):
            is_likely = any(index in blocks for blocks in kept)
            self.pool.release([block_id], are_passing=not is_likely)
        del ids[: first - begin]
        sequence.window_begin = first

    def _list_likely(self, sequence: Sequence) -> list[range]:
        """Return the windows behind which later prompts are likely to go on."""
        size = self._block_size
        ends = {len(sequence.prompt_token_ids) // size, sequence.junction // size}
        return [range(self.find_first(end * size) - SPARE_BLOCKS, end) for end in ends]

    def register(self, sequence: Sequence, index: int, block_hash: bytes) -> None:
        """Let other sequences find a full block, unless it is given back already."""
        if index >= sequence.window_begin:
            block_id = sequence.window_ids[index - sequence.window_begin]
            self.pool.register(block_id, block_hash)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence."""
        self.pool.release(sequence.window_ids)
        sequence.window_ids = []
        sequence.window_begin = 0

    def count_lost(self, sequences: Iterable[Sequence]) -> int:
        """Return how many blocks are not free, though none of these sequences has them."""
        held = {block_id for each in sequences for block_id in each.window_ids}
        return self.pool.num_used - len(held)

    def check(self, running: Iterable[Sequence]) -> None:
        """Assert every invariant of the blocks."""
        running = list(running)
        self.pool.check(sequence.window_ids for sequence in running)
        for sequence in running:
            begin = sequence.window_begin
            query = min(sequence.num_computed, sequence.num_tokens - 1)
            assert begin <= self.find_first(query), "the next token's window stays"
            needed = -(-sequence.num_computed // self._block_size)
            assert (
                begin + len(sequence.window_ids) >= needed
            ), "computed tokens have some"
            assert len(sequence.window_ids) <= self._most_held, "they are bounded"
