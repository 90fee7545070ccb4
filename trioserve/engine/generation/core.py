"""The core of models that generate: a scheduler, and the loop that runs its plans."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import trio

from ...errors import AdapterNotFound
from ...executor import Executor
from ...scheduler.generation.counts import SchedulerCounters, SchedulerStatistics
from ...scheduler.generation.scheduler import Scheduler
from ...scheduler.generation.sequence import Flow, Sequence
from ...scheduler.generation.spans import NO_SPANS, Spans
from ...scheduler.step_cost import StepRates
from ...types.adapter import DEFAULT_MAX_ADAPTERS, NO_ADAPTER, AdapterFacts
from ...types.client import Client
from ...types.ids import SequenceId
from ...types.model_info import ModelInfo
from ...types.output import SequenceError, StepResult, TokenDelta
from ...types.plan import StepPlan
from ...types.prompt import Prompt, count_tokens, list_image_runs
from ...types.sampling import SamplingParams
from ..core import Core, CoreHoldings, HeldWork
from ..loop import StepLoop
from ..sleep.rules import IdleRule
from ..sleep.sleeper import CoreSleep, Memory
from .adapters import AdapterView, CoreAdapters
from .admission import resolve_sampling

# The prompts of a request with more tokens are hashed in a thread. On the event loop this
# many tokens take a third of a millisecond.
LONG_PROMPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """The sequences of one request: sampling.n of each prompt.

    Args:
      first_id: sequence k of prompt i has the id first_id + i * n + k.
      seed: sequence k of n samples with seed + k.
      priority: requests with a lower number go first.
      request_id: for reports to people.
      client: the one that it belongs to.
      adapter: the name of its adapter; empty without one.
    """

    first_id: SequenceId
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    request_id: str = ""
    client: Client = Client()
    adapter: str = ""

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.sampling.n

    def list_ids(self) -> range:
        return range(self.first_id, self.first_id + self.num_sequences)


class GenerationCore(
    Core[Iterable[TokenDelta], SchedulerStatistics, SchedulerCounters], Protocol
):
    """The core of a TokenEngine."""

    @property
    def adapters(self) -> AdapterView:
        """The adapters that requests may name."""

    async def add(self, group: SequenceGroup) -> None:
        """Let sequences wait for admission. A cancelled call leaves none of them.

        Raises:
          AdapterNotFound: the group's adapter is not loaded. A core in another process says
            so in a delta.
        """

    def abort(self, sequence_ids: Collection[SequenceId]) -> None:
        """End sequences; no output follows. An unknown one has ended already."""


class LocalCore:
    """A core in this process.

    Args:
      scheduler: plans steps.
      executor: runs them.
      info: the facts about the model.
      max_adapters: the most adapters that the device holds.
      memory, idle: see CoreSleep.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor[StepPlan, StepResult],
        *,
        info: ModelInfo,
        max_adapters: int = DEFAULT_MAX_ADAPTERS,
        memory: Memory | None = None,
        idle: IdleRule = IdleRule(),
    ) -> None:
        self.adapters = CoreAdapters(executor, info.has_name, max_adapters)
        self._scheduler = scheduler
        self._info = info
        self._preparing = trio.CapacityLimiter(1)
        self._num_arrived = 0
        self._loop = StepLoop(executor, scheduler)
        self.sleep = CoreSleep(
            memory,
            idle,
            loop=self._loop,
            is_at_rest=lambda: scheduler.is_at_rest,
            forget=scheduler.forget_cache,
            lose=self._lose_adapters,
        )
        self._deliver: Callable[[Iterable[TokenDelta]], None]

    async def run(
        self,
        deliver: Callable[[Iterable[TokenDelta]], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        def hand_out(deltas: Collection[TokenDelta]) -> None:
            if self.adapters.number_of:
                self.adapters.leave(
                    each.sequence_id
                    for each in deltas
                    if each.finish_reason is not None or each.error is not None
                )
            deliver(deltas)

        self._deliver = deliver
        async with trio.open_nursery() as nursery:
            await nursery.start(self._loop.run, hand_out)
            nursery.start_soon(self.sleep.run)
            task_status.started()

    def take_place(self, group: SequenceGroup) -> int:
        """Return the first of the arrivals of a group that will be added.

        Among equals, the sequence that came first goes first.
        """
        place = self._num_arrived
        self._num_arrived += group.num_sequences
        return place

    async def add(self, group: SequenceGroup, place: int | None = None) -> None:
        """See GenerationCore.add.

        Args:
          place: see take_place; None takes the next one.
        """
        place = self.take_place(group) if place is None else place
        facts = None
        if group.adapter:
            facts = self.adapters.use(group.adapter, group.list_ids())
        try:
            sequences = self._make_sequences(group, place, facts)
            if count_tokens(group.prompts) > LONG_PROMPT:
                await trio.to_thread.run_sync(
                    self._scheduler.prepare,
                    sequences,
                    limiter=self._preparing,
                    abandon_on_cancel=True,
                )
                if facts is not None and not self.adapters.holds(facts.number):
                    # A sleep lost it meanwhile.
                    raise AdapterNotFound(group.adapter)
        except BaseException:
            self.adapters.leave(group.list_ids())
            raise
        for sequence in sequences:
            self._scheduler.add(sequence)
        self.sleep.note_work()
        self._loop.wake()

    def abort(self, sequence_ids: Collection[SequenceId]) -> None:
        for sequence_id in sequence_ids:
            self._scheduler.abort(sequence_id)
        self.adapters.leave(sequence_ids)
        self.sleep.note_work()
        # An idle device may hold vectors that it must forget now.
        self._loop.wake()

    def end_all(self, has_ended: Callable[[int], bool]) -> None:
        """End the sequences with the ids of a client that is gone."""
        held = self._scheduler.list_holdings().sequences
        self.abort([each.sequence_id for each in held if has_ended(each.sequence_id)])

    async def inspect(
        self, *, lost: bool = False, process: bool = False
    ) -> CoreHoldings:
        await trio.lowlevel.checkpoint()
        held = self._scheduler.list_holdings(lost=lost)
        return CoreHoldings(
            work=tuple(
                HeldWork(
                    id=each.sequence_id,
                    request_id=each.request_id,
                    num_blocks=each.num_blocks,
                )
                for each in held.sequences
            ),
            num_lost_blocks=held.num_lost_blocks,
            num_lost_slots=held.num_lost_slots,
        )

    def after_aborts(self, call: Callable[[], None]) -> None:
        call()

    def statistics(self) -> SchedulerStatistics:
        return self._scheduler.statistics()

    def counters(self) -> SchedulerCounters:
        return self._scheduler.counters()

    def rates(self) -> StepRates:
        return self._scheduler.rates()

    def stalled_seconds(self) -> float:
        return self._loop.step_age_seconds

    def _lose_adapters(self, numbers: Collection[int]) -> None:
        """End the sequences of adapters that are gone, while no step is in flight."""
        for number in numbers:
            name, users = self.adapters.lose(number)
            for sequence_id in users:
                self._scheduler.abort(SequenceId(sequence_id))
            error = SequenceError(adapter=name)
            self._deliver(
                [
                    TokenDelta(sequence_id=SequenceId(k), index=index, error=error)
                    for k, index in users.items()
                ]
            )

    def _make_sequences(
        self, group: SequenceGroup, place: int, adapter: AdapterFacts | None
    ) -> list[Sequence]:
        samplings = resolve_sampling(group.prompts, group.sampling, self._info)
        resolved = [
            each
            for each in zip(group.prompts, samplings)
            for _ in range(group.sampling.n)
        ]
        flow = Flow(group.priority, group.request_id, group.client)
        return [
            Sequence(
                sequence_id=SequenceId(number),
                prompt_token_ids=prompt.token_ids,
                sampling=sampling,
                # Behind the largest int64 follows the smallest one.
                seed=(group.seed + offset % group.sampling.n + 2**63) % 2**64 - 2**63,
                index=offset,
                arrival=place + offset,
                flow=flow,
                eos_token_ids=self._info.eos_token_ids,
                cache_salt=prompt.cache_salt,
                adapter=NO_ADAPTER if adapter is None else adapter.number,
                adapter_digest=b"" if adapter is None else adapter.digest,
                embedded=prompt.embedded,
                spans=self._find_spans(prompt) if prompt.embedded else NO_SPANS,
            )
            for offset, (number, (prompt, sampling)) in enumerate(
                zip(group.list_ids(), resolved)
            )
        ]

    def _find_spans(self, prompt: Prompt) -> Spans:
        """Return the parts of a prompt that a step computes whole."""
        if not self._info.joins_images:
            return NO_SPANS
        return Spans(list_image_runs(prompt.embedded))
