"""Copies of states, by which a sequence goes on behind the blocks that it finds.

A block of keys and values does not tell the state behind its last token. So a prefix is
only found up to a border of blocks at which a state was copied. A copy is found by the
hash of the block before its border, which covers all tokens before it, too.

A copy at the end of a prompt, or where prompts part, is likely to be found. A copy at the end of
another chunk is passing: it makes way first until it is found itself, so that a long prompt does
not take the copies of others.

A copy is made behind the tokens of a step's row, and read before the rows of a step. So it
is found from the next step on: a block that is only planned has no state yet. A copy that is
read in a step may be replaced in the same step.
"""

from __future__ import annotations

from collections import OrderedDict


class Checkpoints:
    """The copies of states that a device has room for, the least recently used first.

    Args:
      count: how many there can be; the runner numbers them from 0.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()
        self._passing: OrderedDict[bytes, None] = OrderedDict()
        # Those that the step being planned will make.
        self._planned: set[bytes] = set()

    def begin_step(self) -> None:
        """Let the copies that steps before make be found."""
        self._planned.clear()

    def find(self, block_hash: bytes) -> int | None:
        """Return the copy behind a block; None if there is none."""
        return None if block_hash in self._planned else self._by_hash.get(block_hash)

    def use(self, block_hash: bytes) -> int:
        """Return a copy that `find` has found, and keep it longer than others."""
        self._by_hash.move_to_end(block_hash)
        self._passing.pop(block_hash, None)
        return self._by_hash[block_hash]

    def plan(self, block_hash: bytes, *, is_passing: bool) -> int | None:
        """Choose the copy to be made behind a block.

        Args:
          is_passing: it is at the end of a chunk alone.

        Returns:
          None if there is one, or if no other makes way
        """
        if block_hash in self._by_hash:
            return None
        if not self._free:
            first = self._passing if is_passing or self._passing else self._by_hash
            oldest = next(iter(first), None)
            if oldest is None or oldest in self._planned:
                return None
            self._passing.pop(oldest, None)
            self._free.append(self._by_hash.pop(oldest))
        if is_passing:
            self._passing[block_hash] = None
        self._planned.add(block_hash)
        self._by_hash[block_hash] = self._free.pop()
        return self._by_hash[block_hash]

    def forget(self) -> None:
        """Forget all copies, because their memory is lost."""
        self._free += self._by_hash.values()
        self._by_hash.clear()
        self._passing.clear()
        self._planned.clear()

    def check(self, count: int) -> None:
        """Assert that each copy is free or found by one hash."""
        assert self._passing.keys() <= self._by_hash.keys(), "it is a copy"
        places = [*self._free, *self._by_hash.values()]
        assert sorted(places) == list(range(count)), "a copy has one place"
