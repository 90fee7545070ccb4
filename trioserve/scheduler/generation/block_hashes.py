"""Hashes of a sequence's blocks, by which blocks of equal content are shared."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence as Tokens
from hashlib import blake2b

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
        embedded: tuple[EmbeddedInput, ...],
    ) -> None:
        self._prompt_token_ids = prompt_token_ids
        self._output_token_ids = output_token_ids
        self._embedded = embedded
        self._hashes: list[bytes] = []
        self._prompt_bytes = b""
        self._root = blake2b(cache_salt.encode(), digest_size=16).digest()

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
