"""What the scheduler knows of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

from ..steps import (
    KEY_BYTES,
    BlockId,
    EmbeddedInput,
    SamplingParams,
    SequenceId,
    SlotStart,
)

# Of a token id, in what is hashed.
_ID_BYTES = array("q").itemsize


class Sequence:
    """One prompt and the tokens that follow it.

        [0, num_computed)            keys and values are written, or will be by a step
                                     that is in flight
        [num_computed, num_tokens)   known tokens that no step has taken yet

    Args:
      sequence_id: unique among all sequences of a scheduler.
      prompt_token_ids: at least one.
      sampling: `max_tokens` is not None here.
      seed: see steps.SlotStart.
      arrival: among equal priorities the lower one goes first; unique.
      priority: the lower one goes first.
      eos_token_ids: end the sequence unless sampling.ignore_eos.
      cache_salt: blocks are shared only under the same salt.
      embedded: see steps.Prompt.
    """

    __slots__ = (
        "arrival",
        "block_ids",
        "embedded",
        "eos_token_ids",
        "is_aborted",
        "is_sample_in_flight",
        "num_cached_tokens",
        "num_computed",
        "num_in_flight",
        "output_token_ids",
        "priority",
        "prompt_token_ids",
        "sampling",
        "seed",
        "sequence_id",
        "slot",
        "_block_hashes",
        "_num_planned_blocks",
        "_prompt_bytes",
        "_root_hash",
    )

    def __init__(
        self,
        *,
        sequence_id: SequenceId,
        prompt_token_ids: tuple[int, ...],
        sampling: SamplingParams,
        seed: int,
        arrival: int,
        priority: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
        cache_salt: str = "",
        embedded: tuple[EmbeddedInput, ...] = (),
    ) -> None:
        self.sequence_id = sequence_id
        self.prompt_token_ids = prompt_token_ids
        self.embedded = embedded
        self.output_token_ids: list[int] = []
        self.sampling = sampling
        self.seed = seed
        self.arrival = arrival
        self.priority = priority
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.slot: int | None = None
        self.block_ids: list[BlockId] = []
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.num_in_flight = 0
        self.is_sample_in_flight = False
        self.is_aborted = False
        self._block_hashes: list[bytes] = []
        self._num_planned_blocks = 0
        self._prompt_bytes = b""
        self._root_hash = blake2b(cache_salt.encode(), digest_size=16).digest()

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: the lower one."""
        return self.priority, self.arrival

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def can_be_planned(self) -> bool:
        # A token that is still on the device is not known: its sequence waits.
        return not (self.is_aborted or self.is_sample_in_flight)

    @property
    def has_unread_vectors(self) -> bool:
        """Whether the runner keeps vectors for steps to come."""
        return bool(self.embedded) and (
            self.num_computed < self.embedded[-1].runs[-1][1]
        )

    @property
    def is_decoding(self) -> bool:
        """One token is left to compute and the next one depends on it."""
        return self.can_be_planned and self.num_uncomputed == 1

    def start(self) -> SlotStart:
        """Return what the runner must know once the sequence has a slot."""
        assert self.slot is not None, "only an admitted sequence starts"
        return SlotStart(
            slot=self.slot,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=tuple(self.output_token_ids),
            sampling=self.sampling,
            seed=self.seed,
            stop_token_ids=self.eos_token_ids | set(self.sampling.stop_token_ids),
            embedded=self.embedded,
        )

    def take_new_block_ids(self) -> tuple[BlockId, ...]:
        """Return the blocks that no plan has named since the sequence started."""
        new = self.block_ids[self._num_planned_blocks :]
        self._num_planned_blocks = len(self.block_ids)
        return tuple(new)

    def give_up(self) -> list[BlockId]:
        """Forget slot, blocks and computed tokens; returns the blocks held."""
        block_ids, self.block_ids = self.block_ids, []
        self.slot = None
        self.num_computed = 0
        self._num_planned_blocks = 0
        return block_ids

    def block_hash(self, index: int, block_size: int) -> bytes:
        """Return the hash of block `index` and of all before it.

        Each is computed once, when it is first asked for, a microsecond each. Only full
        blocks of known tokens have a hash. blake2b, not hash(): prompts come from
        strangers, and a collision would answer one with another's text.
        """
        while len(self._block_hashes) <= index:
            done = len(self._block_hashes)
            parent = self._block_hashes[-1] if done else self._root_hash
            start, stop = done * block_size, (done + 1) * block_size
            content = parent + self._encode_tokens(start, stop)
            if self.embedded:
                # Longer than the content of any block of tokens alone.
                content += b"".join(self._list_keys(start, stop))
            self._block_hashes.append(blake2b(content, digest_size=16).digest())
        return self._block_hashes[index]

    def hash_prompt(self, block_size: int, sibling: Sequence | None = None) -> None:
        """Compute the hashes of the prompt's blocks ahead of the step that wants them.

        Args:
          sibling: a sequence of the same prompt, which knows them already.
        """
        if sibling is not None:
            self._block_hashes = sibling._block_hashes.copy()
        elif num_blocks := len(self.prompt_token_ids) // block_size:
            self.block_hash(num_blocks - 1, block_size)

    def _list_keys(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield where vectors stand among the positions [start, stop), and their keys."""
        for item in self.embedded:
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
        """The bytes of the tokens at positions [start, stop), all of them known."""
        assert stop <= self.num_tokens, "only full blocks have a hash"
        prompt_len = len(self.prompt_token_ids)
        if stop <= prompt_len:
            # All at once, because block by block it would take three times as long.
            if not self._prompt_bytes:
                self._prompt_bytes = array("q", self.prompt_token_ids).tobytes()
            return self._prompt_bytes[start * _ID_BYTES : stop * _ID_BYTES]
        tokens = list(self.prompt_token_ids[start:])
        tokens += self.output_token_ids[max(0, start - prompt_len) : stop - prompt_len]
        return array("q", tokens).tobytes()
