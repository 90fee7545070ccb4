"""Continuous batching under one token budget.

There are no prefill and decode phases: a step is a list of rows, each some tokens of
one sequence, and the sum of tokens is bounded. Sequences stand in one order for every
decision. Their place in it is a time: that of their arrival, and LEVEL_SECONDS later for
each level of priority (a lower number is an earlier place). So a level lets a sequence
pass those that came up to LEVEL_SECONDS before it. A sequence that waits is passed only
by sequences that come within a bounded time, so nobody waits for ever, and places never
change, so that nothing has to be sorted again. Time is the sum of all steps' seconds, which
`update` is told: while the device idles nobody waits.

1. Running sequences, in that order. A decoding one takes one token; one whose prompt is
   not computed yet takes a chunk of what the budget leaves once every decoding one
   has its token, so a long prompt delays nobody's next token by more than one step.
2. Waiting ones, in that order, never skipping one: who waits first is admitted first,
   so nobody starves. An admitted sequence gets the blocks of all tokens that it has,
   so only decoding ones can run out of blocks.
3. Who needs a block when none is free preempts the last running sequence (that may be
   itself), which gives everything back and waits again at its old place.

Steps may be in flight while the next one is planned. A sequence whose next token is still
on the device is planned as if it were there: it counts a placeholder (sequence.py). So a
sequence may end while a step has a row for it; nobody wants what that row gives.

In a pipeline of N stages a token that the last stage samples in step s is there when the
first one has done steps s to s + N - 1, and not before:

    step             s     s + 1   s + 2   s + 3
    stage 0          A     B       C       A: reads what stage 2 has just sampled
    stage 1                A       B       C
    stage 2                        A       B

So its sequence is planned again in step s + N at the earliest, or once the token is known,
and the decoding sequences are spread: a step takes 1/N of them, rounded up. If all went
into one step, N - 1 empty ones would follow it. Who has not been sampled for longest goes
first, then who comes first in order: by order alone, whoever is left over when the first
ones' tokens are there again would be left over every time. Chunks of prompts depend on
nothing that is sampled and go in every step.

Invariant: plans are executed in the order in which they were made, by every stage of a
pipeline, and within a step every layer writes all keys and values before it reads any. So

* blocks and slots are free as soon as their sequence has ended or is preempted, steps in
  flight or not: whoever gets them is written by a later step;
* a row's full blocks of known tokens are registered in the prefix cache when the row is
  planned, not when it has been computed: whoever finds one reads it after it was written.
  Each stage has its own layers' part of the block, and has written that before it comes
  to the reader's step, whatever the other stages have done so far.

Invariant: a preempted sequence has no row in the plan being made. Victims are taken
from the end of the running order and rows are made from its front. It is admitted again
once its placeholders are filled, because the runner is told of every token then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Set
from dataclasses import dataclass

from ..steps import (
    BlockId,
    FinishReason,
    SequenceId,
    SequenceOutput,
    SlotStart,
    StepPlan,
    StepResult,
    StepRow,
)
from .blocks import BlockPool
from .queue import WaitingQueue
from .sequence import Sequence

# Waiting time that one level of priority is worth. A guess: longer than most requests wait
# on a server that is not overloaded, short enough for a person to wait.
LEVEL_SECONDS = 10.0

# Cached tokens that one step looks up for new sequences, but for the last of these. They
# cost nothing of the step's budget, yet 25 ns each on the event loop.
_MAX_CACHED_TOKENS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """What is held at this moment; equal to a fresh scheduler's when all is done."""

    num_running: int
    num_waiting: int
    num_steps_in_flight: int
    num_used_blocks: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerCounters:
    """What has happened since the start."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_cached_blocks: int = 0
    step_seconds: float = 0.0


class Scheduler:
    """Plans steps; see the module's docstring for the policy.

    Args:
      num_blocks, block_size: the pool, in blocks, and a block's length in tokens.
      max_num_seqs: sequences that run at once, and slots that plans name.
      max_num_batched_tokens: tokens of one step; at least max_num_seqs.
      max_model_len: no sequence grows beyond; at most num_blocks * block_size, so
        that one sequence alone always fits.
      prefix_caching: share full blocks by content.
      num_stages: those of the pipeline that executes the plans.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        prefix_caching: bool = True,
        num_stages: int = 1,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError("every running sequence must be able to decode in a step")
        if max_model_len > num_blocks * block_size:
            raise ValueError("the longest sequence must fit the pool alone")
        if num_stages < 1:
            raise ValueError("a pipeline has at least one stage")
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._prefix_caching = prefix_caching
        self._num_stages = num_stages
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        # Of which the runner must be told.
        self._ended_slots: list[int] = []
        self._sequences: dict[SequenceId, Sequence] = {}
        # Sorted by Sequence.order.
        self._running: list[Sequence] = []
        self._waiting = WaitingQueue()
        self._in_flight: dict[int, list[Sequence]] = {}
        self._num_steps = 0
        self._step_seconds = 0.0
        self._num_preemptions = 0
        self._num_computed_tokens = 0
        self._num_prompt_tokens = 0
        self._num_sampled_tokens = 0
        self._num_prefix_queried_tokens = 0
        self._num_prefix_hit_tokens = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Do for new sequences what would make the step that admits them long.

        Optional. Nothing but the sequences is touched, so that it may run in another
        thread before they are added.
        """
        if not self._prefix_caching:
            return
        by_prompt: dict[int, Sequence] = {}
        for sequence in sequences:
            sibling = by_prompt.setdefault(id(sequence.prompt_token_ids), sequence)
            sequence.hash_prompt(
                self._block_size, None if sibling is sequence else sibling
            )

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission.

        Raises:
          ValueError: it can never fit, or its id is taken.
        """
        if sequence.num_tokens >= self._max_model_len:
            raise ValueError("the prompt leaves no room for a token of output")
        if sequence.sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence.sequence_id} is there already")
        sequence.max_num_tokens = min(sequence.max_num_tokens, self._max_model_len)
        sequence.place = self._step_seconds + LEVEL_SECONDS * sequence.priority
        self._sequences[sequence.sequence_id] = sequence
        self._waiting.push(sequence)

    def abort(self, sequence_id: SequenceId) -> None:
        """End a sequence; no output follows. One that is unknown has ended already."""
        if (sequence := self._sequences.get(sequence_id)) is not None:
            self._end(sequence)

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or return None if nothing can be computed now."""
        draft = self._draft_step()
        if not draft.rows and not self._ended_slots:
            return None
        ends, self._ended_slots = tuple(self._ended_slots), []
        self._num_steps += 1
        self._in_flight[self._num_steps] = draft.sequences
        return StepPlan(
            step_id=self._num_steps,
            starts=tuple(draft.starts),
            rows=tuple(draft.rows),
            ends=ends,
        )

    def update(
        self, plan: StepPlan, result: StepResult, seconds: float = 0.0
    ) -> list[SequenceOutput]:
        """Take in what a step gave; returns what it added to each living sequence.

        Plans are answered in the order in which they were made.

        Args:
          seconds: how long the device was busy with the step.
        """
        self._step_seconds += seconds
        sequences = self._in_flight.pop(plan.step_id)
        sampled = iter(result.sampled)
        outputs = []
        for row, sequence in zip(plan.rows, sequences, strict=True):
            token_ids = next(sampled) if row.sample else ()
            if not sequence.is_ended:
                output = self._update_sequence(sequence, row, token_ids, result)
                if output is not None:
                    outputs.append(output)
        return outputs

    def list_started(self, plan: StepPlan) -> list[SequenceOutput]:
        """Return, without tokens, the sequences that begin or go on with a plan's step.

        Args:
          plan: the last one that was made.
        """
        slots = {start.slot for start in plan.starts}
        return [
            SequenceOutput(sequence_id=sequence.sequence_id)
            for sequence in self._in_flight[plan.step_id]
            if sequence.slot in slots
        ]

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_steps_in_flight=len(self._in_flight),
            num_used_blocks=self._pool.num_blocks - self._pool.num_free,
            num_blocks=self._pool.num_blocks,
        )

    def counters(self) -> SchedulerCounters:
        return SchedulerCounters(
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_computed_tokens=self._num_computed_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_sampled_tokens=self._num_sampled_tokens,
            num_prefix_queried_tokens=self._num_prefix_queried_tokens,
            num_prefix_hit_tokens=self._num_prefix_hit_tokens,
            num_cached_blocks=self._pool.num_cached,
            step_seconds=self._step_seconds,
        )

    def check(self) -> None:
        """Assert every invariant of queues, slots and blocks."""
        self._pool.check(sequence.block_ids for sequence in self._running)
        orders = [sequence.order for sequence in self._running]
        assert orders == sorted(set(orders)), "running sequences stand in order"
        slots = [sequence.slot for sequence in self._running] + self._free_slots
        assert len(slots) == len(set(slots)), "a slot has one owner"
        for sequence in self._running:
            needed = self._count_blocks(sequence.num_computed)
            assert len(sequence.block_ids) >= needed, "computed tokens have blocks"
        for sequence in self._sequences.values():
            assert sequence.num_placeholders >= 0, "placeholders follow known tokens"
            assert sequence.num_uncomputed >= 0, "only planned tokens are computed"

    # Planning.

    def _draft_step(self) -> _Draft:
        while True:
            num_preemptions = self._num_preemptions
            draft = _Draft(self._max_num_batched_tokens, self._choose_held_back())
            self._plan_running(draft)
            self._admit_waiting(draft)
            # Those whose turn it was may all have given way to those held back, who can
            # have it now. If nobody took it, nobody would wake the loop again.
            if draft.rows or self._num_preemptions == num_preemptions:
                return draft

    def _choose_held_back(self) -> Set[Sequence]:
        """Return the running sequences that leave this step of a pipeline to others."""
        if self._num_stages == 1:
            return frozenset()
        first_absent = self._num_steps + 2 - self._num_stages
        absent = {
            sequence
            for sequence in self._running
            if sequence.num_placeholders and sequence.sampled_in >= first_absent
        }
        decoding = [sequence for sequence in self._running if sequence.is_decoding]
        limit = -(-len(decoding) // self._num_stages)
        ready = [sequence for sequence in decoding if sequence not in absent]
        # Stable: among equals those who come first in order stay in front.
        ready.sort(key=_sampled_in)
        return absent.union(ready[limit:])

    def _plan_running(self, draft: _Draft) -> None:
        running = [
            sequence for sequence in self._running if sequence not in draft.held_back
        ]
        draft.num_reserved = sum(sequence.is_decoding for sequence in running)
        for sequence in running:
            was_preempted = sequence.slot is None
            if was_preempted or not sequence.can_be_planned:
                continue
            draft.num_reserved -= sequence.is_decoding
            num_tokens = min(sequence.num_uncomputed, draft.num_available)
            if num_tokens > 0 and self._make_room(sequence, num_tokens, draft):
                self._plan_row(sequence, num_tokens, draft)

    def _make_room(self, sequence: Sequence, num_tokens: int, draft: _Draft) -> bool:
        """Give a sequence the blocks for its next tokens, preempting who comes last."""
        num_blocks = self._count_blocks(sequence.num_computed + num_tokens)
        num_missing = num_blocks - len(sequence.block_ids)
        if num_missing <= 0:
            return True
        while self._pool.num_free < num_missing:
            victim = self._running[-1]
            if victim is not sequence and victim not in draft.held_back:
                draft.num_reserved -= victim.is_decoding
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_ids += self._pool.allocate(num_missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._num_preemptions += 1
        self._leave(sequence)
        self._waiting.push(sequence)

    def _admit_waiting(self, draft: _Draft) -> None:
        num_cached = 0
        while draft.num_available > 0 and self._free_slots:
            sequence = self._waiting.peek()
            if num_cached >= _MAX_CACHED_TOKENS:
                return
            if sequence is None or not self._admit(sequence):
                return
            num_cached += sequence.num_computed
            draft.starts.append(sequence.start())
            num_tokens = min(sequence.num_uncomputed, draft.num_available)
            self._plan_row(sequence, num_tokens, draft)

    def _admit(self, sequence: Sequence) -> bool:
        if sequence.num_placeholders:
            return False
        cached = self._match_prefix(sequence)
        num_missing = self._count_blocks(sequence.num_tokens) - len(cached)
        num_free = self._pool.num_free - sum(map(self._pool.is_free, cached))
        # A block for each running sequence to grow into: without it the next step
        # would preempt whom this one admits.
        if num_free < num_missing + len(self._running):
            return False
        self._pool.acquire(cached)
        self._waiting.remove(sequence)
        sequence.block_ids = cached + self._pool.allocate(num_missing)
        sequence.num_computed = len(cached) * self._block_size
        sequence.num_registered_blocks = len(cached)
        sequence.slot = self._free_slots.pop()
        insort(self._running, sequence, key=_order)
        self._count_admission(sequence)
        return True

    def _match_prefix(self, sequence: Sequence) -> list[BlockId]:
        """Return the longest chain of cached blocks that begins the sequence."""
        # The logprobs of cached prompt tokens were never kept.
        if not self._prefix_caching or sequence.sampling.prompt_logprobs is not None:
            return []
        # The last token is always computed: its logits give the next one.
        matched: list[BlockId] = []
        for index in range((sequence.num_tokens - 1) // self._block_size):
            block_id = self._pool.find(sequence.block_hash(index, self._block_size))
            if block_id is None:
                break
            matched.append(block_id)
        return matched

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.output_token_ids:
            return
        sequence.num_cached_tokens = sequence.num_computed
        self._num_prompt_tokens += sequence.num_tokens
        if self._prefix_caching:
            self._num_prefix_queried_tokens += sequence.num_tokens
            self._num_prefix_hit_tokens += sequence.num_computed

    def _plan_row(self, sequence: Sequence, num_tokens: int, draft: _Draft) -> None:
        start = sequence.num_computed
        sequence.num_computed += num_tokens
        samples = sequence.num_uncomputed == 0
        draft.add(sequence, start, samples)
        if samples:
            sequence.reserve_token(self._num_steps + 1)
        self._num_computed_tokens += num_tokens
        self._register_full_blocks(sequence)

    def _register_full_blocks(self, sequence: Sequence) -> None:
        """Let others find the blocks whose tokens are all known, and computed."""
        num_tokens = min(sequence.num_computed, sequence.num_tokens)
        first, end = sequence.num_registered_blocks, num_tokens // self._block_size
        if first >= end or not self._prefix_caching:
            return
        for index in range(first, end):
            block_hash = sequence.block_hash(index, self._block_size)
            self._pool.register(sequence.block_ids[index], block_hash)
        sequence.num_registered_blocks = end

    # Taking in results.

    def _update_sequence(
        self,
        sequence: Sequence,
        row: StepRow,
        token_ids: tuple[int, ...],
        result: StepResult,
    ) -> SequenceOutput | None:
        prompt_logprobs = sequence.list_new_logprobs(
            row.start, result.prompt_logprobs.get(row.slot, ())
        )
        first = max(0, sequence.num_tokens - row.end)
        new = sequence.list_new(row.end, token_ids)
        if row.sample and sequence.num_tokens + len(new) == row.end:
            self._start_over(sequence)
        if not new and not prompt_logprobs:
            return None
        num_taken, reason, stop_token_id = self._append(sequence, new)
        if reason is not None:
            self._end(sequence)
        elif sequence.slot is not None:
            self._register_full_blocks(sequence)
        return SequenceOutput(
            sequence_id=sequence.sequence_id,
            token_ids=new[:num_taken],
            logprobs=result.logprobs.get(row.slot, ())[first : first + num_taken],
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens,
            finish_reason=reason,
            stop_token_id=stop_token_id,
        )

    def _start_over(self, sequence: Sequence) -> None:
        """Begin again with the known tokens: the device gave up a row.

        What it has of the sequence now, nobody knows.
        """
        sequence.give_up_placeholders()
        if sequence.slot is not None:
            self._preempt(sequence)

    def _append(
        self, sequence: Sequence, token_ids: tuple[int, ...]
    ) -> tuple[int, FinishReason | None, int | None]:
        """Append sampled tokens up to the one that ends the sequence.

        Returns:
          how many were appended; why the last of them is the last one, if it is; and
          the token that was asked to be it
        """
        for num_taken, token_id in enumerate(token_ids, 1):
            sequence.append(token_id)
            self._num_sampled_tokens += 1
            if len(sequence.output_token_ids) >= sequence.sampling.min_tokens:
                if token_id in sequence.eos_token_ids:
                    return num_taken, "stop", None
                if token_id in sequence.sampling.stop_token_ids:
                    return num_taken, "stop", token_id
            if sequence.num_tokens >= sequence.max_num_tokens:
                return num_taken, "length", None
        return len(token_ids), None, None

    def _end(self, sequence: Sequence) -> None:
        """Take back everything; what steps in flight give is not looked at."""
        sequence.is_ended = True
        del self._sequences[sequence.sequence_id]
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None, "only a running sequence holds anything"
        if sequence.has_unread_vectors:
            self._ended_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._running.remove(sequence)
        self._pool.release(sequence.give_up())

    def _count_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


class _Draft:
    """A plan in the making.

    `num_reserved` tokens of the budget belong to decoding sequences that have not had
    their turn yet.

    Args:
      held_back: running sequences that get no row.
    """

    def __init__(self, budget: int, held_back: Set[Sequence]) -> None:
        self.held_back = held_back
        self.starts: list[SlotStart] = []
        self.rows: list[StepRow] = []
        self.sequences: list[Sequence] = []
        self.num_reserved = 0
        self._budget = budget

    @property
    def num_available(self) -> int:
        return self._budget - self.num_reserved

    def add(self, sequence: Sequence, start: int, samples: bool) -> None:
        assert sequence.slot is not None, "only a running sequence is planned"
        num_tokens = sequence.num_computed - start
        self._budget -= num_tokens
        self.sequences.append(sequence)
        self.rows.append(
            StepRow(
                slot=sequence.slot,
                start=start,
                num_tokens=num_tokens,
                new_block_ids=sequence.take_new_block_ids(),
                sample=samples,
            )
        )


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order


def _sampled_in(sequence: Sequence) -> int:
    return sequence.sampled_in
