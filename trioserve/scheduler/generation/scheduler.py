"""Continuous batching under a budget of tokens and of time.

There are no prefill and decode phases: a step is a list of rows, each some tokens of
one sequence, and the sum of tokens is bounded.

Order. The place of a sequence is a time: the time when it came to the head of its request's
line, plus LEVEL_SECONDS for each level of the request's priority and for each running
sequence of the request (Flow in sequence.py). The lowest place is first.

* So a free slot goes to the request with the fewest running sequences, and among equals to
  the one that has waited longest: requests take turns, not sequences.
* One level lets a request pass requests that came up to LEVEL_SECONDS before it. Only requests
  that come within a bounded time can pass a waiting one, so none waits for ever.

Clients share the device by their weights (client_shares.py): the client that has used least
gets the next place, and the order above applies to its own requests. If that client is
below its share and finds no slot or no blocks, sequences of another one are preempted
(client_preemption.py). If running sequences lack blocks, one of the client is preempted that
holds most of them for its weight. Requests without a client are all of one.

The clock is the sum of all steps' seconds: time in which the device idles does not count,
because nothing waits then.

A step is filled in this order, after sequences of clients have made room for each other:

1. Every decoding sequence has one token. If a block is missing, the sequence with the
   highest place is preempted, which may be the one that needs the block: it gives back
   its slot and its blocks, and waits at its old place. Running sequences raise the place,
   so the preempted sequence belongs to the request with the most of them.
2. Prompts that are computed in part go on, in order, with the rest of the budget.
3. Waiting sequences are admitted, in order, never skipping one. An admitted sequence gets
   the blocks of all tokens that it has, so only decoding ones can run out of blocks.

prompts.py shares a step between long and short prompts. time_share.py limits the time of a
step. micro_batches.py spreads decoding sequences over the steps of a pipeline.
block_tables.py says why blocks are free at once.

Steps may be in flight while the next one is planned. A sequence whose next token is still
on the device is planned as if the token were known: it counts a placeholder (sequence.py).
So a sequence may end while a step in flight has a row for it; the row's result is dropped.

The device may skip a row whose grammar is late. Its sequence keeps its slot and its blocks,
and its last token is computed again in a later step. Rows in flight that were planned behind
the skipped one follow a token that never came. The device skips them, too. A skipped row
costs as much as another, so a sequence has none while the device reports that it is late.

Invariant: a preempted sequence has no row in the plan being made: blocks are found before
rows are made. It is admitted again once its placeholders are filled, because the runner
then needs the ids of all its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
import math

from ...types.ids import SequenceId
from ...types.output import StepResult, TokenDelta, TokenLogprobs
from ...types.plan import SlotStart, StepPlan, StepRow
from ..step_cost import StepCost, StepRates, StepSize
from .block_tables import BlockTables
from .client_preemption import ClientPreemption
from .counts import (
    HeldSequence,
    SchedulerCounters,
    SchedulerHoldings,
    SchedulerStatistics,
)
from .draft import Draft
from .micro_batches import MicroBatches
from .prompts import PromptPlanner
from .running import RunningSequences
from .sequence import Sequence
from .shared_queue import SharedQueue
from .time_share import TimeShare
from .window_blocks import WindowBlocks


class Scheduler:
    """Plans steps; see the module's docstring for the policy.

    Args:
      num_blocks, block_size: the pool, in blocks, and a block's length in tokens.
      max_num_seqs: sequences that run at once, and slots that plans name.
      max_num_batched_tokens: tokens of one step; at least max_num_seqs.
      max_model_len: the most tokens of a sequence; at most num_blocks * block_size, so
        that one sequence alone always fits.
      prefix_caching: share full blocks by content.
      num_checkpoints: copies of states, by which sequences go on behind cached blocks; None
        if the model has no states.
      num_window_blocks, window: the pool of layers with windows, and the most keys that a
        query of theirs sees; None if these layers have the same blocks as all others.
      can_recompute: the last token of a sequence can be computed again.
      num_stages: stages of the pipeline that executes the plans.
      max_step_seconds: how long a step may take while a prompt is computed, or while
        streams of several requests wait for it. In a pipeline that is the time from one
        token of a stream to its next one, and each stage has an equal part of it.
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
        num_checkpoints: int | None = None,
        num_window_blocks: int | None = None,
        window: int | None = None,
        can_recompute: bool = True,
        num_stages: int = 1,
        max_step_seconds: float = math.inf,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError("every running sequence must be able to decode in a step")
        if max_model_len > num_blocks * block_size:
            raise ValueError("the longest sequence must fit the pool alone")
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        # The sequences that may decode beside a prompt.
        self._max_num_others = max_num_seqs - 1
        self._max_model_len = max_model_len
        self._can_recompute = can_recompute
        self._num_stages = num_stages
        self._micro_batches = MicroBatches(num_stages)
        self._cost = StepCost()
        self._time = TimeShare(self._cost, max_step_seconds / num_stages)
        windows = None
        if num_window_blocks is not None and window is not None:
            windows = WindowBlocks(
                num_window_blocks, block_size, window, max_num_batched_tokens
            )
            if not windows.has_room_for(-(-max_model_len // block_size)):
                raise ValueError("the longest sequence must fit the pool alone")
        self._blocks = BlockTables(
            num_blocks, block_size, prefix_caching, num_checkpoints, windows
        )
        self._sequences: dict[SequenceId, Sequence] = {}
        self._running = RunningSequences(max_num_seqs)
        self._waiting = SharedQueue()
        self._prompts = PromptPlanner(self._running, self._waiting, self._blocks)
        self._client_preemption = ClientPreemption(
            self._running, self._waiting, self._blocks
        )
        self._in_flight: dict[int, list[Sequence]] = {}
        # Steps in flight from which the cost is learned: their sizes, and the number of
        # stages that divides their durations.
        self._sizes: dict[int, tuple[StepSize, int]] = {}
        self._num_steps = 0
        # The last plan computes a part of a prompt.
        self._has_chunks = False
        self._step_seconds = 0.0
        self._num_preemptions = 0
        self._num_computed_tokens = 0
        self._num_sampled_tokens = 0

    def prepare(self, sequences: Iterable[Sequence]) -> None:
        """Hash the prompts of new sequences before the step that admits them; optional.

        Touches nothing but the sequences, so that it may run in another thread before they
        are added.
        """
        self._blocks.prepare(sequences)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for admission.

        Raises:
          ValueError: it can never fit, or its id is taken.
        """
        if sequence.num_tokens >= self._max_model_len:
            raise ValueError("the prompt leaves no room for a token of output")
        if sequence.spans.longest > self._max_num_batched_tokens - self._max_num_others:
            raise ValueError("no step has room for an image of the prompt")
        if sequence.sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence.sequence_id} is there already")
        sequence.max_num_tokens = min(sequence.max_num_tokens, self._max_model_len)
        flow = sequence.flow
        if flow.entry is None and flow.num_running == 0:
            flow.turn = self._step_seconds
        self._sequences[sequence.sequence_id] = sequence
        self._waiting.enter(sequence)

    def abort(self, sequence_id: SequenceId) -> None:
        """End a sequence; no output follows. An unknown one has ended already."""
        if (sequence := self._sequences.get(sequence_id)) is not None:
            self._end(sequence)

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or return None if nothing can be computed now."""
        draft = self._draft_step()
        running = self._running
        if not draft.rows and not running.ended_slots:
            return None
        ends, running.ended_slots = tuple(running.ended_slots), []
        self._num_steps += 1
        self._num_computed_tokens += draft.size.num_tokens
        self._has_chunks = draft.size.num_tokens > len(draft.rows)
        if draft.is_typical:
            # A step that is alone in a pipeline goes through all stages before its result
            # comes. Otherwise results follow each other at the pace of one stage.
            num_stages = 1 if self._in_flight else self._num_stages
            self._sizes[draft.step_id] = draft.size, num_stages
        self._in_flight[draft.step_id] = draft.sequences
        return StepPlan(
            step_id=draft.step_id,
            starts=tuple(draft.starts),
            rows=tuple(draft.rows),
            ends=ends,
        )

    def update(
        self, plan: StepPlan, result: StepResult, seconds: float = 0.0
    ) -> list[TokenDelta]:
        """Take in the result of a step; returns the new tokens of each living sequence.

        Results come in the order of their plans.

        Args:
          seconds: how long the device was busy with the step.
        """
        self._step_seconds += seconds
        if plan.step_id in self._sizes:
            size, num_stages = self._sizes.pop(plan.step_id)
            self._cost.learn(size, seconds / num_stages)
        sequences = self._in_flight.pop(plan.step_id)
        if plan.rows and (result.late or self._running.has_late):
            self._running.note_late(plan, result)
        sampled = iter(result.sampled)
        deltas = []
        for row, sequence in zip(plan.rows, sequences, strict=True):
            token_ids = next(sampled) if row.sample else ()
            if not sequence.is_ended:
                delta = self._update_sequence(sequence, row, token_ids, result)
                if delta is not None:
                    deltas.append(delta)
        self._blocks.register([each for each in sequences if each.slot is not None])
        return deltas

    def list_started(self, plan: StepPlan) -> list[TokenDelta]:
        """Return an empty delta for each sequence that starts with a plan's step.

        Args:
          plan: the last one that was made.
        """
        if not plan.starts:
            return []
        return [
            TokenDelta(sequence_id=sequence.sequence_id, index=sequence.index)
            for sequence in self._running
            if sequence.started_in == plan.step_id
        ]

    @property
    def is_steady(self) -> bool:
        """True if the last plan has decodes alone, and nobody waits for anything but a slot.

        Rows with grammars wait for the tokens of the step before, and are skipped if these are
        late. The more steps are in flight, the more rows are planned behind a skipped one.
        """
        may_admit = self._waiting.num_sequences > 0 and self._running.has_free_slot
        return not (self._has_chunks or may_admit or self._running.num_guided)

    @property
    def is_at_rest(self) -> bool:
        """True if there are no sequences, and the device has nothing left to do for any."""
        return not (self._sequences or self._in_flight or self._running.ended_slots)

    def forget_cache(self) -> None:
        """Forget the content of all blocks, because the device loses it.

        No running sequence may have blocks.
        """
        self._blocks.forget()

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=self._waiting.num_sequences,
            num_steps_in_flight=len(self._in_flight),
            num_used_blocks=self._blocks.num_used,
            num_blocks=self._blocks.num_blocks,
            num_used_window_blocks=self._blocks.num_used_window_blocks,
            num_window_blocks=self._blocks.num_window_blocks,
        )

    def counters(self) -> SchedulerCounters:
        return SchedulerCounters(
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_computed_tokens=self._num_computed_tokens,
            num_prompt_tokens=self._prompts.num_admitted_tokens,
            num_sampled_tokens=self._num_sampled_tokens,
            num_prefix_queried_tokens=self._blocks.num_queried_tokens,
            num_prefix_hit_tokens=self._blocks.num_hit_tokens,
            num_cached_blocks=self._blocks.num_cached,
            step_seconds=self._step_seconds,
        )

    def list_holdings(self, *, lost: bool = False) -> SchedulerHoldings:
        """Return everything that sequences hold.

        Args:
          lost: also count the blocks and slots that nobody holds.
        """
        known = {each.sequence_id: each for each in self._running} | self._sequences
        return SchedulerHoldings(
            sequences=tuple(
                HeldSequence(
                    sequence_id=sequence_id,
                    request_id=sequence.flow.request_id,
                    num_blocks=sequence.num_blocks,
                    has_slot=sequence.slot is not None,
                )
                for sequence_id, sequence in known.items()
            ),
            num_lost_blocks=self._blocks.count_lost(known.values()) if lost else 0,
            num_lost_slots=self._running.num_lost_slots if lost else 0,
        )

    def rates(self) -> StepRates:
        """Return the measured speed of steps."""
        return self._cost.list_rates(self._num_stages)

    def check(self) -> None:
        """Assert every invariant of queues, slots and blocks."""
        self._blocks.check(self._running)
        self._running.check()
        for sequence in self._sequences.values():
            assert sequence.num_placeholders >= 0, "placeholders follow known tokens"
            assert sequence.num_uncomputed >= 0, "only planned tokens are computed"
        self._waiting.check(
            {each.flow for each in self._sequences.values() if each.slot is None}
        )

    # Planning.

    def _draft_step(self) -> Draft:
        step_id = self._num_steps + 1
        waiting = self._waiting
        self._blocks.begin_step(self._running)
        starts = self._make_room(step_id) if waiting.shares.are_shared else []
        while True:
            num_preemptions = self._num_preemptions
            draft = Draft(
                step_id, self._max_num_batched_tokens, self._block_size, self._cost
            )
            draft.starts += starts
            decoding, prompts = self._list_candidates()
            if self._num_stages > 1:
                decoding, prompts = self._micro_batches.choose(
                    step_id, decoding, prompts
                )
            has_prompts = bool(prompts) or (
                waiting.num_sequences > 0 and self._running.has_free_slot
            )
            if self._time.is_limited and (has_prompts or self._is_shared(decoding)):
                decoding = self._time.limit(draft, decoding, has_prompts=has_prompts)
            if self._find_blocks(decoding, prompts):
                decoding = [each for each in decoding if each.slot is not None]
                prompts = [each for each in prompts if each.slot is not None]
            draft.add_decoding(decoding)
            if waiting.shares.are_shared:
                waiting.charge_decoding(decoding)
            self._blocks.register(decoding)
            if prompts or waiting.num_sequences:
                self._prompts.plan(prompts, draft, self._step_seconds)
            # If preemptions have left the step empty, other sequences may use the freed
            # blocks. Without a step nothing would wake the loop.
            if draft.rows or self._num_preemptions == num_preemptions:
                return draft

    def _make_room(self, step_id: int) -> list[SlotStart]:
        """Admit sequences that displace sequences of other clients."""
        starts = []
        while (choice := self._client_preemption.choose(step_id)) is not None:
            sequence, victims = choice
            for victim in victims:
                self._preempt(victim)
            start = self._prompts.admit(sequence, step_id, self._step_seconds)
            starts.append(start)
        return starts

    def _list_candidates(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return the running sequences that may have a row: decoding ones, and prompts.

        A decoding sequence has one token left to compute, and its next one depends on it.
        """
        decoding, late, prompts = [], [], []
        for sequence in self._running:
            if sequence.num_planned < sequence.max_num_tokens or sequence.is_unread:
                if sequence.num_planned - sequence.num_computed != 1:
                    prompts.append(sequence)
                elif sequence.is_often_late and sequence.is_held_back:
                    late.append(sequence)
                else:
                    decoding.append(sequence)
        # Without a step nothing would wake the loop.
        if not (decoding or prompts or self._in_flight):
            decoding = late
        return decoding, prompts

    def _is_shared(self, decoding: list[Sequence]) -> bool:
        """Return whether a stream in the step waits for rows of other requests."""
        if not decoding or self._running.num_flows > 1:
            return bool(decoding)
        if not (self._waiting.num_sequences and self._running.has_free_slot):
            return False
        first = self._waiting.peek()
        return first is not None and first.flow is not decoding[0].flow

    def _find_blocks(self, decoding: list[Sequence], prompts: list[Sequence]) -> bool:
        """Give sequences the blocks for their tokens; returns whether any is preempted."""
        growing = self._blocks.list_growing(decoding, prompts)
        if not growing:
            return False
        num_preemptions = self._num_preemptions
        while not self._blocks.can_extend(growing):
            victim = self._running.find_last()
            self._preempt(victim)
            growing = [sequence for sequence in growing if sequence is not victim]
        self._blocks.extend(growing)
        return self._num_preemptions > num_preemptions

    def _preempt(self, sequence: Sequence) -> None:
        self._num_preemptions += 1
        self._leave(sequence)
        self._waiting.push(sequence)

    # Taking in results.

    def _update_sequence(
        self,
        sequence: Sequence,
        row: StepRow,
        token_ids: tuple[int, ...],
        result: StepResult,
    ) -> TokenDelta | None:
        # Most steps have none of these.
        logprobs: tuple[TokenLogprobs, ...] = ()
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if result.prompt_logprobs and row.slot in result.prompt_logprobs:
            prompt_logprobs = sequence.list_new_logprobs(
                row.start, result.prompt_logprobs[row.slot]
            )
        num_known, end = sequence.num_tokens, row.start + row.num_tokens
        # A row behind a gap was computed with a token that never came.
        if result.errors and row.slot in result.errors and end <= num_known:
            self._end(sequence)
            return TokenDelta(
                sequence_id=sequence.sequence_id,
                index=sequence.index,
                error=result.errors[row.slot],
            )
        new = sequence.append_new(end, token_ids)
        if not new:
            if row.sample and num_known == end:
                self._take_back(sequence)
            if sequence.writes_nothing and num_known == end:
                sequence.finish_reason = "length"
            elif not prompt_logprobs:
                return None
        self._num_sampled_tokens += len(new)
        if sequence.finish_reason is not None:
            self._end(sequence)
        if result.logprobs and row.slot in result.logprobs:
            first = max(0, num_known - end)
            logprobs = result.logprobs[row.slot][first : first + len(new)]
        return TokenDelta(
            sequence_id=sequence.sequence_id,
            index=sequence.index,
            token_ids=new,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached_tokens,
            finish_reason=sequence.finish_reason,
            stop_token_id=sequence.stop_token_id,
        )

    def _take_back(self, sequence: Sequence) -> None:
        """Plan the last known token of a sequence again, because its row was skipped."""
        if sequence.slot is None:
            sequence.give_up_placeholders()
        elif self._can_recompute and sequence.can_recompute:
            sequence.recompute_last()
        else:
            sequence.give_up_placeholders()
            self._preempt(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Take back everything; results of steps in flight are dropped."""
        sequence.is_ended = True
        del self._sequences[sequence.sequence_id]
        if sequence.slot is None:
            self._waiting.drop(sequence)
        else:
            self._leave(sequence)
        self._waiting.leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take back the slot and the blocks of a running sequence."""
        self._waiting.refund_prompt(sequence)
        self._running.leave(sequence)
        self._blocks.release(sequence)
        # The place of the flow's waiting sequences depends on its running ones.
        if sequence.flow.entry is not None:
            self._waiting.update(sequence.flow)
