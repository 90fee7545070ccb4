"""Continuous batching under a budget of tokens and of time.

There are no prefill and decode phases: a step is a list of rows, each some tokens of
one sequence, and the sum of tokens is bounded.

Order. A sequence's place is a time: when it came to the head of its request's line, and
LEVEL_SECONDS later for each level of the request's priority and for each sequence of the
request that runs (sequence.py). The lowest place is first.

* So a free slot goes to the request with the fewest running sequences, and among equals to
  the one that has waited longest: requests take turns, not sequences.
* A level lets a request pass those that came up to LEVEL_SECONDS before it. Whoever waits
  is passed only by requests that come within a bounded time, so nobody waits for ever.

Time is the sum of all steps' seconds, which `update` is told: nobody waits while the device
idles.

A step. It is filled in this order:

1. Every decoding sequence has one token. When a block is missing, the sequence with the
   highest place is preempted (that may be the one that needs it), gives everything back
   and waits again at its old place. The places of running sequences count as above, so it
   belongs to the request with the most of them.
2. Prompts that are computed in part go on, in order, with what the budget leaves.
3. Waiting sequences are admitted, in order, never skipping one. An admitted sequence gets
   the blocks of all tokens that it has, so only decoding ones can run out of blocks.

A prompt that is longer than what the budget leaves takes half of it while prompts of other
requests come after it that have at most half of its tokens left. So a short prompt does not
wait until a long one is computed. Prompts of about the same length are computed one after
the other: if they shared steps, the first would be late and the second hardly earlier.

Time. While streams of other requests wait for a step, it may take `max_step_seconds`, as
far as its cost is known (step_cost.py). Chunks of prompts shrink for that as their context
grows. If decoding takes too long, the rows of a request with many sequences take turns
(turns.py), each request having one row at least. Prompts have PROMPT_SHARE of each step, and
at least a block of tokens, whatever decoding takes: or a busy server would never come to
them. So a step takes longer than it may only where a row for each request takes more than
half of that time, and then twice as long as the rows; or by a block of tokens. A request
that is alone has no such bound: the longer its chunks, the sooner its prompts are done.

Steps may be in flight while the next one is planned. A sequence whose next token is still
on the device is planned as if it were there: it counts a placeholder (sequence.py). So a
sequence may end while a step has a row for it; the row's result is dropped.

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

Invariant: a preempted sequence has no row in the plan being made: blocks are found before
rows are made. It is admitted again once its placeholders are filled, because the runner
is told of every token then.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
import math

from ...types.ids import BlockId, SequenceId
from ...types.output import FinishReason, StepResult, TokenDelta
from ...types.plan import StepPlan, StepRow
from ..step_cost import StepCost, StepSize
from .blocks import BlockPool
from .draft import Draft, count_context
from .queue import WaitingQueue
from .sequence import Sequence
from .turns import DecodingTurns

# Part of a step's time that prompts may take, however long decoding takes. So a model that
# is slow, or has many streams, computes prompts half as fast as it could, and its streams
# go on half as fast meanwhile.
PROMPT_SHARE = 0.5

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
      max_step_seconds: how long a step may take while streams of other requests wait for
        it. In a pipeline that is the time from one token of a stream to its next one: a
        stage has a part of it.
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
        max_step_seconds: float = math.inf,
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
        self._max_step_seconds = max_step_seconds / num_stages
        self._cost = StepCost()
        self._turns = DecodingTurns(self._cost)
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        # Of which the runner must be told.
        self._ended_slots: list[int] = []
        self._sequences: dict[SequenceId, Sequence] = {}
        # Sorted by Sequence.order.
        self._running: list[Sequence] = []
        # Requests that they belong to.
        self._num_flows = 0
        self._waiting = WaitingQueue()
        self._in_flight: dict[int, list[Sequence]] = {}
        # Of steps in flight that tell something about costs, with the number of stages
        # that their duration is divided by.
        self._sizes: dict[int, tuple[StepSize, int]] = {}
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
        flow = sequence.flow
        if flow.entry is None and flow.num_running == 0:
            flow.turn = self._step_seconds
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
        if draft.is_typical:
            # One step alone in a pipeline goes through all stages before its result is
            # there. Otherwise results follow each other at one stage's time.
            num_stages = 1 if self._in_flight else self._num_stages
            self._sizes[self._num_steps] = draft.size, num_stages
        self._in_flight[self._num_steps] = draft.sequences
        return StepPlan(
            step_id=self._num_steps,
            starts=tuple(draft.starts),
            rows=tuple(draft.rows),
            ends=ends,
        )

    def update(
        self, plan: StepPlan, result: StepResult, seconds: float = 0.0
    ) -> list[TokenDelta]:
        """Take in what a step gave; returns what it added to each living sequence.

        Plans are answered in the order in which they were made.

        Args:
          seconds: how long the device was busy with the step.
        """
        self._step_seconds += seconds
        if plan.step_id in self._sizes:
            size, num_stages = self._sizes.pop(plan.step_id)
            self._cost.learn(size, seconds / num_stages)
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

    def list_started(self, plan: StepPlan) -> list[TokenDelta]:
        """Return, without tokens, the sequences that begin or go on with a plan's step.

        Args:
          plan: the last one that was made.
        """
        slots = {start.slot for start in plan.starts}
        return [
            TokenDelta(sequence_id=sequence.sequence_id, index=sequence.index)
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
        self._waiting.check(
            {each.flow for each in self._sequences.values() if each.slot is None}
        )
        flows = Counter(sequence.flow for sequence in self._running)
        assert len(flows) == self._num_flows, "every request with a sequence is counted"
        for flow, num_running in flows.items():
            assert flow.num_running == num_running, "a flow counts its sequences"

    # Planning.

    def _draft_step(self) -> Draft:
        while True:
            num_preemptions = self._num_preemptions
            draft = Draft(self._max_num_batched_tokens, self._block_size, self._cost)
            decoding, prompts = self._list_candidates()
            decoding = self._share_time(decoding, prompts, draft)
            if self._find_blocks(decoding, prompts):
                decoding = [each for each in decoding if each.slot is not None]
                prompts = [each for each in prompts if each.slot is not None]
            draft.add_decoding(decoding)
            for sequence in decoding:
                self._plan_row(sequence, 1, draft)
            self._plan_prompts(prompts, draft)
            # All whose turn it was may have given way to sequences that were left out,
            # which can have it now. If the step stayed empty, nobody would wake the loop.
            if draft.rows or self._num_preemptions == num_preemptions:
                return draft

    def _list_candidates(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running sequences that may have a row: decoding ones, and prompts.

        One token is left to compute of a decoding one, and the next one depends on it.
        """
        decoding, prompts = [], []
        for sequence in self._running:
            if sequence.num_planned < sequence.max_num_tokens:
                if sequence.num_planned - sequence.num_computed == 1:
                    decoding.append(sequence)
                else:
                    prompts.append(sequence)
        if self._num_stages > 1:
            decoding = self._choose_micro_batch(decoding)
            prompts = [sequence for sequence in prompts if self._is_known(sequence)]
        return decoding, prompts

    def _is_known(self, sequence: Sequence) -> bool:
        """Return whether the first stage has a sequence's last token in this step."""
        first_absent = self._num_steps + 2 - self._num_stages
        return not sequence.num_placeholders or sequence.sampled_in < first_absent

    def _choose_micro_batch(self, decoding: list[Sequence]) -> list[Sequence]:
        """Return those that decode in this step of a pipeline."""
        ready = [sequence for sequence in decoding if self._is_known(sequence)]
        # Stable: among equals those who come first in order stay in front.
        ready.sort(key=_sampled_in)
        chosen = ready[: -(-len(decoding) // self._num_stages)]
        return sorted(chosen, key=_order)

    def _share_time(
        self, decoding: list[Sequence], prompts: list[Sequence], draft: Draft
    ) -> list[Sequence]:
        """Bound a step that others wait for; returns the sequences that decode in it."""
        if self._max_step_seconds == math.inf or not self._is_shared(decoding):
            return decoding
        limit = self._max_step_seconds
        if prompts or (self._free_slots and self._waiting):
            limit *= 1 - PROMPT_SHARE
        needed = self._predict_decoding(decoding)
        if needed > limit:
            rows_seconds = limit - self._cost.fixed_seconds
            decoding = self._turns.choose(decoding, rows_seconds)
            needed = self._predict_decoding(decoding)
        draft.seconds = max(
            self._max_step_seconds - needed,
            needed * PROMPT_SHARE / (1 - PROMPT_SHARE),
        )
        return decoding

    def _predict_decoding(self, decoding: list[Sequence]) -> float:
        """Return the seconds of a step that decodes and does nothing else."""
        return self._cost.predict_decoding(len(decoding), count_context(decoding))

    def _is_shared(self, decoding: list[Sequence]) -> bool:
        """Return whether a stream in the step waits for other requests' rows."""
        if not decoding or self._num_flows > 1:
            return bool(decoding)
        first = self._waiting.peek() if self._free_slots else None
        return first is not None and first.flow is not decoding[0].flow

    def _find_blocks(self, decoding: list[Sequence], prompts: list[Sequence]) -> bool:
        """Give sequences the blocks for their tokens; returns whether any is preempted."""
        size = self._block_size
        wanting = [
            sequence
            for sequence in (*decoding, *prompts)
            if sequence.num_planned > size * len(sequence.block_ids)
        ]
        num_preemptions = self._num_preemptions
        while self._pool.num_free < sum(map(self._count_missing, wanting)):
            victim = max(self._running, key=_standing)
            self._preempt(victim)
            wanting = [sequence for sequence in wanting if sequence is not victim]
        for sequence in wanting:
            sequence.block_ids += self._pool.allocate(self._count_missing(sequence))
        return self._num_preemptions > num_preemptions

    def _count_missing(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence needs for tokens that are not computed."""
        return self._count_blocks(sequence.num_planned) - len(sequence.block_ids)

    def _preempt(self, sequence: Sequence) -> None:
        self._num_preemptions += 1
        self._leave(sequence)
        self._waiting.push(sequence)

    def _plan_prompts(self, prompts: list[Sequence], draft: Draft) -> None:
        """Give what is left of a step to prompts, and admit new ones."""
        line = deque(prompts)
        while draft.has_room and (line or self._admit_next(line, draft)):
            sequence = line.popleft()
            num_tokens = self._measure_chunk(sequence, draft)
            draft.prompt_flows.add(sequence.flow)
            if num_tokens < sequence.num_uncomputed:
                limit = self._choose_share(num_tokens)
                num_left = self._leave_to_shorter(sequence, limit, line, draft)
                if num_left > 0 and limit == num_tokens:
                    line.append(sequence)
                    continue
                num_tokens -= num_left
            draft.add_chunk(sequence, num_tokens)
            self._plan_row(sequence, num_tokens, draft)

    def _choose_share(self, num_tokens: int) -> int:
        """Return how many tokens of a long prompt's chunk shorter prompts may have.

        Half of them. Where that is less than a block, the long prompt comes after the
        shorter ones in every other step.
        """
        if num_tokens >= 2 * self._block_size:
            return num_tokens // 2
        return num_tokens if self._num_steps % 2 else 0

    def _measure_chunk(self, sequence: Sequence, draft: Draft) -> int:
        """Return how many tokens of a prompt the step has room for."""
        limit = min(sequence.num_uncomputed, draft.num_tokens)
        if draft.seconds == math.inf:
            return limit
        start = sequence.num_computed
        num_tokens = draft.count_tokens(start)
        if num_tokens >= limit:
            return limit
        # Whole blocks, which others can find.
        num_tokens -= (start + num_tokens) % self._block_size
        return min(limit, max(num_tokens, self._block_size))

    def _leave_to_shorter(
        self, sequence: Sequence, limit: int, line: deque[Sequence], draft: Draft
    ) -> int:
        """Return how many tokens a long prompt leaves to shorter ones of other requests.

        Waiting ones are admitted as long as the tokens are not used up. With prompts of at
        most half its length, the times to the first tokens are shorter in the mean.
        """
        flows, longest = draft.prompt_flows, sequence.num_uncomputed // 2
        needed = sum(
            each.num_uncomputed
            for each in line
            if each.flow not in flows and each.num_uncomputed <= longest
        )
        while needed < limit:
            first = self._waiting.peek()
            if first is None or first.flow in flows:
                break
            num_tokens = first.num_tokens - self._block_size * len(
                self._match_prefix(first)
            )
            if num_tokens > longest or not self._admit_next(line, draft):
                break
            needed += num_tokens
        return min(limit, needed)

    def _admit_next(self, line: deque[Sequence], draft: Draft) -> bool:
        """Append the first waiting sequence to the step's line of prompts, if it can run."""
        sequence = self._waiting.peek()
        if draft.is_closed or draft.num_cached >= _MAX_CACHED_TOKENS:
            return False
        if sequence is None or not self._free_slots or not self._admit(sequence):
            # Nothing that happens while a step is drafted would let it in.
            draft.is_closed = True
            return False
        draft.num_cached += sequence.num_computed
        draft.starts.append(sequence.start())
        line.append(sequence)
        return True

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
        sequence.block_ids = cached + self._pool.allocate(num_missing)
        sequence.num_computed = len(cached) * self._block_size
        sequence.num_registered_blocks = len(cached)
        self._enter(sequence)
        self._count_admission(sequence)
        return True

    def _enter(self, sequence: Sequence) -> None:
        """Let the first of the waiting sequences run."""
        flow = sequence.flow
        if sequence.place is None:
            sequence.place = flow.place
            flow.turn = self._step_seconds
        self._num_flows += flow.num_running == 0
        flow.num_running += 1
        self._waiting.pop()
        sequence.slot = self._free_slots.pop()
        insort(self._running, sequence, key=_order)

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

    def _plan_row(self, sequence: Sequence, num_tokens: int, draft: Draft) -> None:
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
    ) -> TokenDelta | None:
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
        return TokenDelta(
            sequence_id=sequence.sequence_id,
            index=sequence.index,
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
            self._waiting.drop(sequence)
        else:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None, "only a running sequence holds anything"
        if sequence.has_unread_vectors:
            self._ended_slots.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._running.remove(sequence)
        self._pool.release(sequence.give_up())
        flow = sequence.flow
        flow.num_running -= 1
        self._num_flows -= flow.num_running == 0
        if flow.entry is not None:
            self._waiting.update(flow)

    def _count_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order


def _standing(sequence: Sequence) -> tuple[float, int]:
    """Return the order in which running sequences keep what they have."""
    place, arrival = sequence.order
    return place + sequence.flow.surcharge, arrival


def _sampled_in(sequence: Sequence) -> int:
    return sequence.sampled_in
