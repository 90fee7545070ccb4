"""The pool of KV blocks: their owners, their content, and the order in which they are taken.

A block is in one of three states:

    held        ref_count >= 1   in the block tables of that many sequences
    cached      ref_count == 0   free, but its content can still be found by hash
    empty       ref_count == 0   free, and its content is useless

`cached` and `empty` blocks stand in one queue, and allocation takes the first: empty ones
come first, then cached ones, the least recently used first. Cached blocks that hardly anybody will
look for are *passing*: they stand in a queue of their own, and are taken before other cached ones.

Blocks of equal content are found by the hashes that sequences compute.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence as Tokens
from hashlib import blake2b

from ...types.ids import BlockId
from ...types.prompt import KEY_BYTES, EmbeddedInput

# Bytes of one token id in the hashed content.
_ID_BYTES = array("q").itemsize


class BlockHashes:
    """The hashes of one sequence's blocks, each computed when it is first needed.

    A hash covers its block and all blocks before it. It is blake2b and not hash(),
    because clients are not trusted: after a collision, one user would get an answer to
    the text of another. A hash takes a microsecond.

    Args:
      cache_salt: blocks are shared only under the same salt.
      adapter_digest: and with the same adapter; empty without one.
      embedded: see types.prompt.Prompt.
    """

    __slots__ = (
        "_embedded",
        "_hashes",
        "_output_token_ids",
        "_prompt_bytes",
        "_prompt_token_ids",
        "_root",
    )

    def __init__(
        self,
        prompt_token_ids: tuple[int, ...],
        output_token_ids: Tokens[int],
        *,
        cache_salt: str,
        adapter_digest: bytes,
        embedded: tuple[EmbeddedInput, ...],
    ) -> None:
        self._prompt_token_ids = prompt_token_ids
        self._output_token_ids = output_token_ids
        self._embedded = embedded
        self._hashes: list[bytes] = []
        self._prompt_bytes = b""
        self._root = blake2b(
            cache_salt.encode(), digest_size=16, key=adapter_digest
        ).digest()

    def get(self, index: int, block_size: int) -> bytes:
        """Return the hash of block `index`; all of its tokens must be known."""
        while len(self._hashes) <= index:
            done = len(self._hashes)
            parent = self._hashes[-1] if done else self._root
            start, stop = done * block_size, (done + 1) * block_size
            content = parent + self._encode_tokens(start, stop)
            if self._embedded:
                # Blocks with vectors have longer contents than blocks of tokens alone,
                # so the two never match.
                content += b"".join(self._list_keys(start, stop))
            self._hashes.append(blake2b(content, digest_size=16).digest())
        return self._hashes[index]

    def copy_from(self, other: BlockHashes) -> None:
        """Take over the hashes of a sequence with the same prompt."""
        self._hashes = other._hashes.copy()

    def _list_keys(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the runs of vectors among the positions [start, stop), and their keys."""
        for item in self._embedded:
            num_before = 0
            for begin, end in item.runs:
                first, last = max(begin, start), min(end, stop)
                if first < last:
                    yield array("q", (first - start, last - start)).tobytes()
                    offset = num_before + first - begin
                    yield item.keys[
                        offset * KEY_BYTES : (offset + last - first) * KEY_BYTES
                    ]
                num_before += end - begin

    def _encode_tokens(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens at positions [start, stop)."""
        num_prompt = len(self._prompt_token_ids)
        known = num_prompt + len(self._output_token_ids)
        assert stop <= known, "only full blocks of known tokens have a hash"
        if stop <= num_prompt:
            # All at once, because block by block it would take three times as long.
            if not self._prompt_bytes:
                self._prompt_bytes = array("q", self._prompt_token_ids).tobytes()
            return self._prompt_bytes[start * _ID_BYTES : stop * _ID_BYTES]
        tokens = list(self._prompt_token_ids[start:])
        tokens += self._output_token_ids[max(0, start - num_prompt) : stop - num_prompt]
        return array("q", tokens).tobytes()


class BlockPool:
    """Counts references to `num_blocks` blocks and remembers full ones by hash.

    Source: Kwon et al. 2023 (PagedAttention), section 4. As in vLLM, the queue of free
    blocks is also the LRU list of the cache.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, BlockId] = {}
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(
            map(BlockId, range(num_blocks))
        )
        self._passing: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, including cached ones."""
        return len(self._free) + len(self._passing)

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by hash, held or free."""
        return len(self._by_hash)

    def find(self, block_hash: bytes) -> BlockId | None:
        """Return the block with this content, held or free."""
        return self._by_hash.get(block_hash)

    def is_free(self, block_id: BlockId) -> bool:
        return block_id in self._free or block_id in self._passing

    def acquire(self, block_ids: Iterable[BlockId]) -> None:
        """Take a reference to blocks that `find` returned."""
        for block_id in block_ids:
            self._free.pop(block_id, None)
            self._passing.pop(block_id, None)
            self._ref_counts[block_id] += 1

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Take free blocks and forget their cached content.

        Raises:
          ValueError: fewer are free.
        """
        if num_blocks > self.num_free:
            raise ValueError(f"{num_blocks} blocks needed, {self.num_free} are free")
        return [self._allocate_one() for _ in range(num_blocks)]

    def _allocate_one(self) -> BlockId:
        queue = self._free
        if self._passing and not self._has_empty:
            queue = self._passing
        block_id, _ = queue.popitem(last=False)
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block_id] = None
        self._ref_counts[block_id] = 1
        return block_id

    @property
    def _has_empty(self) -> bool:
        first = next(iter(self._free), None)
        return first is not None and self._hashes[first] is None

    def release(self, block_ids: list[BlockId], *, are_passing: bool = False) -> None:
        """Give back one reference to each block of a sequence, in table order.

        Args:
          are_passing: hardly anybody will look for them.
        """
        # In reverse, so that the last blocks of a sequence are evicted before its first
        # ones: a chain without its first block can never be matched again.
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id]
            assert count > 0, "a block is released once for each time it was taken"
            self._ref_counts[block_id] = count - 1
            if count == 1:
                if are_passing and self._hashes[block_id] is not None:
                    self._passing[block_id] = None
                    continue
                self._free[block_id] = None
                if self._hashes[block_id] is None:
                    self._free.move_to_end(block_id, last=False)

    def forget(self) -> None:
        """Forget the content of all blocks, because their memory is lost; nobody holds one."""
        assert not self.num_used, "a lost block has no holder"
        self._by_hash.clear()
        self._hashes = [None] * self.num_blocks
        self._free.update(self._passing)
        self._passing.clear()

    def count_holders(self, block_id: BlockId) -> int:
        """Return how many sequences hold a block."""
        return self._ref_counts[block_id]

    def register(self, block_id: BlockId, block_hash: bytes) -> None:
        """Make a held, full block findable, unless another one has the same content."""
        assert self._ref_counts[block_id] > 0, "only held blocks are registered"
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def check(self, held: Iterable[list[BlockId]]) -> None:
        """Assert that no block is lost, shared wrongly or freed twice.

        Args:
          held: the block tables of all sequences that hold blocks.
        """
        counts = [0] * self.num_blocks
        for block_ids in held:
            assert len(set(block_ids)) == len(block_ids), "a table names a block once"
            for block_id in block_ids:
                counts[block_id] += 1
        assert counts == self._ref_counts, "references equal the tables' entries"
        free = {BlockId(i) for i, count in enumerate(counts) if count == 0}
        assert free == {*self._free, *self._passing}, "nobody holds a free block"
        assert self.num_free == len(free), "it stands in one queue"
        for block_hash, block_id in self._by_hash.items():
            assert self._hashes[block_id] == block_hash, "hash and block agree"


class PoolNeed:
    """The blocks of a pool that a waiting sequence needs, and the free ones.

    Args:
      num_blocks: the number that it will hold.
      cached: the blocks with which it begins.
    """

    def __init__(self, pool: BlockPool, num_blocks: int, cached: list[BlockId]) -> None:
        self.num_blocks = num_blocks
        self.cached = cached
        self._pool = pool
        self._num_missing = num_blocks - len(cached)
        self._num_free = pool.num_free - sum(map(pool.is_free, cached))
        # How many of its holders a block loses; cached blocks are counted already.
        self._num_released: Counter[BlockId] = Counter()
        self._found = set(cached)

    def take(self) -> list[BlockId]:
        """Acquire the cached blocks, and allocate the others."""
        self._pool.acquire(self.cached)
        return self.cached + self._pool.allocate(self._num_missing)

    def release(self, block_ids: list[BlockId]) -> None:
        """Count the blocks that are free once a running sequence has left."""
        self._num_released.update(block_ids)
        self._num_free += sum(
            self._num_released[id] == self._pool.count_holders(id)
            for id in block_ids
            if id not in self._found
        )

    def count_lacking(self, num_running: int) -> int:
        """Return how many blocks must become free; zero or less if there are enough.

        Args:
          num_running: sequences that stay.
        """
        # One block stays free for each running sequence to grow into. Without it the next
        # step would preempt the sequence that this one admits.
        return self._num_missing + num_running - self._num_free
