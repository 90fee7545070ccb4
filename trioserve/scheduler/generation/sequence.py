"""Sequences, and the flow of one request's sequences, as the scheduler sees them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
import heapq

from ...types.ids import BlockId, SequenceId
from ...types.output import NOT_SAMPLED, TokenLogprobs
from ...types.plan import SlotStart
from ...types.prompt import KEY_BYTES, EmbeddedInput
from ...types.sampling import SamplingParams

# Of a token id, in what is hashed.
_ID_BYTES = array("q").itemsize

# Waiting time that one level of priority is worth. A guess: longer than most requests wait
# on a server that is not overloaded, short enough for a person to wait.
LEVEL_SECONDS = 10.0


class Flow:
    """The sequences of one request.

    Args:
      priority: requests with a lower number go first.

    Attributes:
      turn: when its next sequence came to the head of its line, in seconds: with the
        request, or when the sequence before it was admitted.
      num_running: its sequences that run.
      entry: its valid entry in the queue of those that wait.
    """

    __slots__ = ("priority", "turn", "num_running", "entry", "_waiting")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self.turn = 0.0
        self.num_running = 0
        self.entry: tuple[float, int, Flow] | None = None
        # (arrival, sequence) of those that wait, and of some that have ended.
        self._waiting: list[tuple[int, Sequence]] = []

    @property
    def place(self) -> float:
        """The place of its next sequence among all, in seconds; the lowest is first."""
        return self.turn + LEVEL_SECONDS * self.priority

    @property
    def surcharge(self) -> float:
        """What is added to places for the flow's running sequences.

        Each of them counts as one level: so a free slot goes to the request with the
        fewest, and who has to give one back is the request with the most.
        """
        return LEVEL_SECONDS * self.num_running

    def find_first(self) -> Sequence | None:
        """Return the first of its sequences that wait."""
        while self._waiting and self._waiting[0][1].is_ended:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait, before those that came later."""
        heapq.heappush(self._waiting, (sequence.arrival, sequence))

    def pop_first(self) -> None:
        heapq.heappop(self._waiting)


class Sequence:
    """One prompt and the tokens that follow it.

        prompt_token_ids | output_token_ids | placeholders
                                            ^ num_tokens

    A placeholder is a token that a step in flight samples. It has a position and no id;
    it is counted and stands in no list, so that to fill it is to append a token, however
    long the output is, and placeholders are a suffix because there is no other place.
    Keys and values of [0, num_computed) are written, or will be by a step in flight.

    Args:
      sequence_id: unique among all sequences of a scheduler.
      prompt_token_ids: at least one.
      sampling: `max_tokens` is not None here.
      seed: see steps.SlotStart.
      arrival: rises with each sequence; unique.
      index: its number in its request.
      flow: of its request; by default a request by itself.
      eos_token_ids: end the sequence unless sampling.ignore_eos.
      cache_salt: blocks are shared only under the same salt.
      embedded: see steps.Prompt.

    Attributes:
      num_tokens: those whose ids are known.
      num_planned: those that there will be once all steps in flight have given theirs.
      max_num_tokens: with so many tokens it ends. The scheduler lowers it to the model's
        length.
      place: among all sequences, in seconds, from its admission on; see Flow.
      sampled_in: the last step that was planned to sample its next token, 0 before the
        first.
      last_turn: rises with each step that had no time for all, and decoded this one.
    """

    __slots__ = (
        "arrival",
        "block_ids",
        "embedded",
        "eos_token_ids",
        "flow",
        "index",
        "is_ended",
        "last_turn",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_planned",
        "num_registered_blocks",
        "num_tokens",
        "output_token_ids",
        "place",
        "prompt_token_ids",
        "sampled_in",
        "sampling",
        "seed",
        "sequence_id",
        "slot",
        "_block_hashes",
        "_num_planned_blocks",
        "_num_reported",
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
        index: int = 0,
        flow: Flow | None = None,
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
        self.index = index
        self.flow = flow or Flow()
        self.place: float | None = None
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.slot: int | None = None
        self.block_ids: list[BlockId] = []
        assert sampling.max_tokens is not None, "the engine works it out"
        self.max_num_tokens = len(prompt_token_ids) + sampling.max_tokens
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.num_tokens = len(prompt_token_ids)
        self.num_registered_blocks = 0
        self.sampled_in = 0
        self.last_turn = 0
        self.is_ended = False
        self.num_planned = len(prompt_token_ids)
        # Prompt tokens whose log probabilities have been given.
        self._num_reported = 0
        self._block_hashes: list[bytes] = []
        self._num_planned_blocks = 0
        self._prompt_bytes = b""
        self._root_hash = blake2b(cache_salt.encode(), digest_size=16).digest()

    @property
    def order(self) -> tuple[float, int]:
        """Of sequences that run the lower one goes first."""
        assert self.place is not None, "it was admitted"
        return self.place, self.arrival

    @property
    def num_placeholders(self) -> int:
        return self.num_planned - self.num_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens, placeholders included, that no step has taken yet."""
        return self.num_planned - self.num_computed

    @property
    def can_be_planned(self) -> bool:
        """Whether a token is wanted beyond those that are on their way."""
        return self.num_planned < self.max_num_tokens

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

    def reserve_token(self, step_id: int) -> None:
        """Count a placeholder: a step that samples was planned."""
        self.num_planned += 1
        self.sampled_in = step_id

    def list_new(self, position: int, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of a step's tokens that are the sequence's next ones.

        Args:
          position: where the first of them stands.
          token_ids: as in StepResult.sampled.
        """
        if NOT_SAMPLED in token_ids:
            token_ids = token_ids[: token_ids.index(NOT_SAMPLED)]
        num_known = self.num_tokens - position
        # Behind a gap: the step was planned with a token that never came.
        if num_known < 0:
            return ()
        # A step before this one may have told more than it was planned for.
        return token_ids[num_known:]

    def append(self, token_id: int) -> None:
        """Fill the first placeholder, or go on where there is none."""
        self.output_token_ids.append(token_id)
        self.num_tokens += 1
        if self.num_planned < self.num_tokens:
            self.num_planned = self.num_tokens

    def give_up_placeholders(self) -> None:
        """Expect nothing of the steps in flight: what they give stands behind a gap."""
        self.num_planned = self.num_tokens

    def list_new_logprobs(
        self, position: int, logprobs: tuple[TokenLogprobs, ...]
    ) -> tuple[TokenLogprobs, ...]:
        """Return those of a step's prompt_logprobs that were not given before.

        A sequence that was preempted computes its prompt once more.

        Args:
          position: of the token before the first one that is reported.
        """
        new = logprobs[max(0, self._num_reported - position) :]
        self._num_reported += len(new)
        return new

    def start(self) -> SlotStart:
        """Return what the runner must know once the sequence has a slot."""
        assert self.slot is not None, "only an admitted sequence starts"
        assert self.num_placeholders == 0, "the runner is told of every token"
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
        self.num_registered_blocks = 0
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
