"""A sequence with its tokens, its blocks and its place; and the flow of one request."""

from __future__ import annotations

import heapq

from ...types.adapter import NO_ADAPTER
from ...types.client import Client
from ...types.ids import BlockId, SequenceId
from ...types.output import NOT_SAMPLED, FinishReason, TokenLogprobs
from ...types.plan import SlotStart
from ...types.prompt import EmbeddedInput
from ...types.sampling import SamplingParams
from .blocks import BlockHashes
from .repetition import RepetitionDetector
from .spans import NO_SPANS, Spans

# Waiting time that one level of priority is worth. A guess: longer than most requests wait
# on a server that is not overloaded, short enough for a person to wait.
LEVEL_SECONDS = 10.0


class Flow:
    """The sequences of one request.

    Args:
      priority: requests with a lower number go first.
      request_id: for reports to people.
      client: the one that it belongs to.

    Attributes:
      turn: when its next sequence came to the head of its line, in seconds: with the
        request, or when the sequence before it was admitted.
      num_running: its running sequences.
      entry: its valid entry in the queue of waiting sequences.
    """

    __slots__ = (
        "client",
        "priority",
        "request_id",
        "turn",
        "num_running",
        "entry",
        "_waiting",
    )

    def __init__(
        self, priority: int = 0, request_id: str = "", client: Client = Client()
    ) -> None:
        self.client = client
        self.priority = priority
        self.request_id = request_id
        self.turn = 0.0
        self.num_running = 0
        self.entry: tuple[float, int, Flow] | None = None
        # (arrival, sequence) of waiting sequences, and of some that have ended.
        self._waiting: list[tuple[int, Sequence]] = []

    @property
    def place(self) -> float:
        """The place of its next sequence among all, in seconds; the lowest is first."""
        return self.turn + LEVEL_SECONDS * self.priority

    @property
    def surcharge(self) -> float:
        """Seconds added to its places for its running sequences.

        Each running sequence counts as one level. So a free slot goes to the request with
        the fewest running sequences, and a preemption takes one from the request with the
        most.
        """
        return LEVEL_SECONDS * self.num_running

    def find_first(self) -> Sequence | None:
        """Return the first of its waiting sequences."""
        while self._waiting and self._waiting[0][1].is_ended:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait, before later ones."""
        heapq.heappush(self._waiting, (sequence.arrival, sequence))

    def pop_first(self) -> None:
        """Remove the sequence that `find_first` returned."""
        heapq.heappop(self._waiting)


class Sequence:
    """One prompt and the tokens that follow it.

        prompt_token_ids | output_token_ids | placeholders
                                            ^ num_tokens

    A placeholder is a token that a step in flight samples. It has a position and no id
    yet. Placeholders are counted and stand in no list: they always follow the known tokens,
    so that filling one is appending a token, however long the output is. The keys and values
    of positions [0, num_computed) are written, or a step in flight will write them.

    Args:
      sequence_id: unique among all sequences of a scheduler.
      prompt_token_ids: at least one.
      sampling: its `max_tokens` is not None here; 0 ends the sequence when its prompt is read.
      seed: see plan.SlotStart.
      arrival: rises with each sequence; unique.
      index: its number in its request.
      flow: the flow of its request; by default a request by itself.
      eos_token_ids: end the sequence unless sampling.ignore_eos.
      cache_salt, adapter_digest: see BlockHashes.
      embedded: see prompt.Prompt.
      spans: parts of the prompt that a step computes whole.
      adapter: see plan.SlotStart.

    Attributes:
      stop_token_ids: end the sequence: these, and those of the request.
      num_tokens: tokens whose ids are known.
      num_planned: known tokens and placeholders.
      max_num_tokens: the sequence ends at this length. The scheduler lowers it to the
        length of the model.
      num_planned_blocks: its first blocks, which plans have named since it started.
      place: its place among all, in seconds, from its admission on; see Flow.
      finish_reason, stop_token_id: as in TokenDelta.
      sampled_in: the last step that was planned to sample its next token, 0 before the
        first.
      started_in: the last step with which it took a slot, 0 before the first.
      num_found: tokens that it found in the prefix cache then.
      num_known_at_start: known tokens that it had then.
      num_paid: tokens for which its client paid then.
      is_late: the device waits for its grammar, and would skip its row.
      is_often_late: the device also did so after its last token.
      checkpoint: the copy of states with which it goes on since then, if any.
      junction: the end of the cached blocks with which it began, though it may have gone on
        behind fewer of them.
      writes_nothing: it ends when its prompt is read.
      window_ids: its blocks for layers with windows, if they have blocks of their own.
      window_begin: the place of the first of them among the blocks of its tokens.
      hashes: of its full blocks of known tokens.
      last_turn: number of the last turn in which it decoded; rises with each step that had
        no time for all sequences.
    """

    __slots__ = (
        "adapter",
        "arrival",
        "block_ids",
        "checkpoint",
        "embedded",
        "eos_token_ids",
        "finish_reason",
        "flow",
        "hashes",
        "index",
        "is_ended",
        "is_late",
        "is_often_late",
        "junction",
        "last_turn",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_found",
        "num_known_at_start",
        "num_paid",
        "num_planned",
        "num_planned_blocks",
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
        "spans",
        "started_in",
        "stop_token_id",
        "stop_token_ids",
        "window_begin",
        "window_ids",
        "writes_nothing",
        "_num_computed_before",
        "_num_planned_window_blocks",
        "_num_reported",
        "_repetition",
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
        adapter: int = NO_ADAPTER,
        adapter_digest: bytes = b"",
        embedded: tuple[EmbeddedInput, ...] = (),
        spans: Spans = NO_SPANS,
    ) -> None:
        self.sequence_id = sequence_id
        self.prompt_token_ids = prompt_token_ids
        self.embedded = embedded
        self.spans = spans
        self.adapter = adapter
        self.output_token_ids: list[int] = []
        self.sampling = sampling
        self.seed = seed
        self.arrival = arrival
        self.index = index
        self.flow = flow or Flow()
        self.place: float | None = None
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.stop_token_ids = self.eos_token_ids | set(sampling.stop_token_ids)
        self.slot: int | None = None
        self.block_ids: list[BlockId] = []
        self.window_ids: list[BlockId] = []
        self.window_begin = 0
        assert sampling.max_tokens is not None, "the engine works it out"
        self.max_num_tokens = len(prompt_token_ids) + sampling.max_tokens
        self.writes_nothing = sampling.max_tokens == 0
        self.num_computed = 0
        self.checkpoint: int | None = None
        self.junction = 0
        self.num_cached_tokens = 0
        self.num_tokens = len(prompt_token_ids)
        self.num_registered_blocks = 0
        self.sampled_in = 0
        self.started_in = 0
        self.num_found = 0
        self.num_known_at_start = 0
        self.num_paid = 0
        self.last_turn = 0
        self.is_late = False
        self.is_often_late = False
        self.is_ended = False
        self.finish_reason: FinishReason | None = None
        self.stop_token_id: int | None = None
        self.num_planned = len(prompt_token_ids)
        # Prompt tokens whose log probabilities have been reported.
        self._num_reported = 0
        self.num_planned_blocks = 0
        self._num_planned_window_blocks = 0
        self._num_computed_before = 0
        # Made with the first token: many sequences may wait.
        self._repetition: RepetitionDetector | None = None
        self.hashes = BlockHashes(
            prompt_token_ids,
            self.output_token_ids,
            cache_salt=cache_salt,
            adapter_digest=adapter_digest,
            embedded=embedded,
        )

    @property
    def order(self) -> tuple[float, int]:
        """Among running sequences, the one with the lower order goes first."""
        assert self.place is not None, "only an admitted sequence has an order"
        return self.place, self.arrival

    @property
    def num_placeholders(self) -> int:
        return self.num_planned - self.num_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens and placeholders that no step has computed or planned yet."""
        return self.num_planned - self.num_computed

    @property
    def is_unread(self) -> bool:
        """True if it writes nothing, and a part of its prompt is not computed yet."""
        return self.writes_nothing and self.num_uncomputed > 0

    @property
    def has_unread_vectors(self) -> bool:
        """True if the runner keeps vectors of the prompt for a later step."""
        return self.num_computed < self._end_of_vectors

    @property
    def can_recompute(self) -> bool:
        """True if the runner can compute the last known token again.

        It forgets a vector once it was read.
        """
        return self.num_tokens > self._end_of_vectors

    @property
    def _end_of_vectors(self) -> int:
        return self.embedded[-1].runs[-1][1] if self.embedded else 0

    @property
    def num_repeated(self) -> int:
        """Tokens that it computes again since it took its slot, because it lost them before."""
        return max(0, self._num_computed_before - self.num_found)

    @property
    def num_decoded(self) -> int:
        """Tokens that it has decoded, or is planned to, since it took its slot."""
        return max(0, self.num_computed - self.num_known_at_start)

    @property
    def is_held_back(self) -> bool:
        """True if a step should have no row of the sequence, which would be skipped."""
        return self.is_late or (self.is_often_late and self.num_placeholders > 0)

    def note_lateness(self, is_late: bool, has_new_token: bool) -> None:
        """Take in the device's report on its grammar with the result of a step."""
        self.is_late = is_late
        if is_late or has_new_token:
            self.is_often_late = is_late

    def append_new(self, position: int, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Append the part of a step's tokens that continues the known tokens.

        The last of them may end the sequence, which sets finish_reason.

        Args:
          position: position of the first of the step's tokens.
          token_ids: as in StepResult.sampled.

        Returns:
          the appended tokens
        """
        if position != self.num_tokens or NOT_SAMPLED in token_ids:
            token_ids = self._list_new(position, token_ids)
        sampling, outputs, num_taken = self.sampling, self.output_token_ids, 0
        for token_id in token_ids:
            outputs.append(token_id)
            num_taken += 1
            self.num_tokens = num_tokens = self.num_tokens + 1
            # It fills the first placeholder, if there is one.
            if self.num_planned < num_tokens:
                self.num_planned = num_tokens
            if token_id in self.stop_token_ids and len(outputs) >= sampling.min_tokens:
                self.finish_reason = "stop"
                if token_id not in self.eos_token_ids:
                    self.stop_token_id = token_id
            elif num_tokens >= self.max_num_tokens:
                self.finish_reason = "length"
            elif sampling.repetition_detection is not None and self._is_repeating():
                self.finish_reason = "repetition"
            else:
                continue
            return token_ids[:num_taken]
        return token_ids

    def _list_new(self, position: int, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of a step's tokens that continues the known tokens."""
        if NOT_SAMPLED in token_ids:
            token_ids = token_ids[: token_ids.index(NOT_SAMPLED)]
        num_known = self.num_tokens - position
        # The step was planned with a token that never came, so its own tokens follow a
        # gap.
        if num_known < 0:
            return ()
        # A step may sample more tokens than planned, and the next step some of them again.
        return token_ids[num_known:]

    def _is_repeating(self) -> bool:
        rule = self.sampling.repetition_detection
        if rule is None or not rule.is_on:
            return False
        if self._repetition is None:
            self._repetition = RepetitionDetector(rule)
        is_long_enough = len(self.output_token_ids) >= self.sampling.min_tokens
        # The detector sees each token, whether or not the sequence may end.
        return self._repetition.is_repeating(self.output_token_ids) and is_long_enough

    def give_up_placeholders(self) -> None:
        """Expect no more tokens of the steps in flight; `append_new` drops theirs."""
        self.num_planned = self.num_tokens

    def recompute_last(self) -> None:
        """Compute the last known token again, because the device has skipped its row."""
        assert self.can_recompute, "the runner has forgotten the last vector"
        self.give_up_placeholders()
        self.num_computed = self.num_tokens - 1

    def list_new_logprobs(
        self, position: int, logprobs: tuple[TokenLogprobs, ...]
    ) -> tuple[TokenLogprobs, ...]:
        """Return the part of a step's prompt_logprobs that was not reported before.

        A preempted sequence computes its prompt again.

        Args:
          position: position of the token before the first reported one.
        """
        new = logprobs[max(0, self._num_reported - position) :]
        self._num_reported += len(new)
        return new

    def start(self, step_id: int) -> SlotStart:
        """Start with a step; returns the facts that the runner needs about its slot."""
        assert self.slot is not None, "only an admitted sequence starts"
        assert self.num_placeholders == 0, "the runner is told of every token"
        self.started_in = step_id
        self.num_found = self.num_computed
        self.num_known_at_start = self.num_tokens
        return SlotStart(
            slot=self.slot,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=tuple(self.output_token_ids),
            sampling=self.sampling,
            seed=self.seed,
            stop_token_ids=self.stop_token_ids,
            embedded=self.embedded,
            restores=self.checkpoint,
            first_window_block=self.window_begin,
            adapter=self.adapter,
        )

    @property
    def end_of_window_blocks(self) -> int:
        """The place behind its last window block among the blocks of its tokens."""
        return self.window_begin + len(self.window_ids)

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, and may share."""
        return len(self.block_ids) + len(self.window_ids)

    def list_blocks(self) -> list[int]:
        """Return numbers of the blocks that it holds, different for all blocks."""
        return [*self.block_ids, *(~block_id for block_id in self.window_ids)]

    def take_new_block_ids(self) -> tuple[BlockId, ...]:
        """Return the blocks that no plan has named since the sequence started."""
        new = self.block_ids[self.num_planned_blocks :]
        self.num_planned_blocks = len(self.block_ids)
        return tuple(new)

    def take_new_window_ids(self) -> tuple[BlockId, ...]:
        """Return the window blocks that no plan has named since the sequence started."""
        num_planned, end = self._num_planned_window_blocks, self.end_of_window_blocks
        if num_planned == end:
            return ()
        self._num_planned_window_blocks = end
        # Blocks are named before they are given back.
        return tuple(self.window_ids[max(0, num_planned - self.window_begin) :])

    def give_up(self) -> list[BlockId]:
        """Forget slot, blocks and computed tokens; returns the blocks that it held."""
        block_ids, self.block_ids = self.block_ids, []
        self.slot = None
        self.is_late = False
        self._num_computed_before = max(self._num_computed_before, self.num_computed)
        self.num_computed = 0
        self.num_registered_blocks = 0
        self.num_planned_blocks = 0
        self._num_planned_window_blocks = 0
        return block_ids

    def hash_prompt(self, block_size: int, sibling: Sequence | None = None) -> None:
        """Hash the prompt's blocks before the step that needs the hashes.

        Args:
          sibling: a sequence of the same prompt that has done so.
        """
        if sibling is not None:
            self.hashes.copy_from(sibling.hashes)
        elif num_blocks := len(self.prompt_token_ids) // block_size:
            self.hashes.get(num_blocks - 1, block_size)
