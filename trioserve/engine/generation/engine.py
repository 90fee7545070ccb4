"""The engine of models that generate: it holds requests and gives their tokens to streams.

open_stream --> core --> deltas --> stream
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
import logging
import secrets

import trio

from ...config import SchedulingPolicy
from ...errors import AdapterNotFound, EngineProcessDied, RequestError
from ...observe import Owner, name_owner
from ...scheduler.generation.counts import SchedulerCounters, SchedulerStatistics
from ...types.adapter import ServedAdapter
from ...types.client import Client
from ...types.ids import SequenceId
from ...types.model_info import ModelInfo
from ...types.output import TokenDelta
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..backlog import Forecast
from ..engine import Engine, check_priority
from ..peer_work import PeerWork
from .admission import check_request
from .backlog import Backlog, BacklogStatistics
from .core import GenerationCore, SequenceGroup
from .forecast import Demand, Forecaster
from .token_stream import ReaderQueue, TokenStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEngineStatistics:
    """The present state; equal to a fresh engine's when all is done.

    Args:
      num_sequences: sequences of all streams that have not ended.
      num_queued_tokens: prompt tokens of requests that have no token yet.
    """

    num_streams: int
    num_sequences: int
    num_queued_tokens: int
    backlog: BacklogStatistics
    scheduler: SchedulerStatistics


class TokenEngine(Engine[GenerationCore, Iterable[TokenDelta], SchedulerCounters]):
    """Generates token ids from token ids, for any number of streams.

    Args:
      core, info, max_queued_tokens, scheduling_policy, reopen: see Engine.
      max_num_sequences: the most sequences that run and wait together; more are refused.
      max_num_running: the most sequences that run at once.
      first_id: of its first sequence; see process/messages.py.
    """

    _places = ("sequences", "n")

    def __init__(
        self,
        core: GenerationCore,
        *,
        info: ModelInfo,
        max_num_sequences: int,
        max_num_running: int = 0,
        max_queued_tokens: int | None = None,
        scheduling_policy: SchedulingPolicy = "fcfs",
        reopen: Callable[[], Awaitable[GenerationCore]] | None = None,
        first_id: int = 0,
    ) -> None:
        self._backlog = Backlog()
        super().__init__(
            core,
            info=info,
            backlog=self._backlog,
            max_num_places=max_num_sequences,
            max_queued_tokens=max_queued_tokens,
            scheduling_policy=scheduling_policy,
            reopen=reopen,
        )
        self._max_num_running = max_num_running
        self._next_id = first_id
        self._streams: dict[SequenceId, TokenStream] = {}
        self._readers = ReaderQueue()
        self._forecaster = Forecaster(self._backlog, max_num_running)
        # The requests of each adapter by its name; names that are gone are forgotten later.
        self._num_of_adapter: Counter[str] = Counter()
        # The paths of adapters that the next core loads again, by their names.
        self._lost_adapters: dict[str, str] = {}
        self._num_failures = 0
        self._has_restarted = trio.Event()

    def statistics(self) -> TokenEngineStatistics:
        """Return the present state."""
        return TokenEngineStatistics(
            num_streams=len(self._requests),
            num_sequences=len(self._streams),
            num_queued_tokens=self._backlog.queued_tokens.total,
            backlog=self._backlog.statistics(),
            scheduler=self._core.statistics(),
        )

    def describe_work(self) -> PeerWork:
        return self._forecaster.describe_work()

    def set_peer(self, number: int, work: PeerWork | None) -> None:
        self._forecaster.set_peer(trio.current_time(), number, work)
        self._observe_pace()

    def forecast(self, demand: Demand) -> Forecast | None:
        """Forecast the times of a request that comes now; see Forecaster.predict."""
        now, rates = trio.current_time(), self._core.rates()
        return self._forecaster.predict(now, rates, demand)

    def note_refused(self, demand: Demand) -> None:
        """Count a request that was refused because of its forecast."""
        now, rates = trio.current_time(), self._core.rates()
        self._forecaster.note_refused(now, rates, demand)

    def _note_taken(self, prompt_lengths: Sequence[int], client: Client) -> None:
        demand = Demand(
            num_prompt_tokens=sum(prompt_lengths),
            num_prompts=len(prompt_lengths),
            client=client,
        )
        now, rates = trio.current_time(), self._core.rates()
        self._forecaster.note_taken(now, rates, demand)

    @asynccontextmanager
    async def open_stream(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        client: Client = Client(),
        adapter: str = "",
    ) -> AsyncIterator[TokenStream]:
        """Generate sampling.n sequences from each prompt, until the block is left.

        Args:
          prompts: sequence k of prompt i has the index i * n + k in the deltas.
          priority: requests with a lower number go first; see SchedulerConfig.
          client: the one that it belongs to.
          adapter: the name of a loaded adapter; empty for the model as it is.

        Raises:
          InvalidParameter, ContextLengthExceeded: see check_priority and check_request.
          AdapterNotFound: it is not loaded, or not any more.
          QueueFull: other requests have too many sequences or tokens.
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        check_priority(priority, self._scheduling_policy)
        check_request(prompts, sampling, self.info)
        lengths = [len(prompt.token_ids) for prompt in prompts]
        # Others may have come while a server prepared the prompts, whose lengths it guessed.
        self.check_room(len(prompts) * sampling.n, sum(lengths), client)
        if adapter and adapter not in self.adapters:
            raise AdapterNotFound(adapter)
        if adapter:
            self._num_of_adapter[adapter] += 1
            if len(self._num_of_adapter) > 2 * len(self.adapters):
                self._forget_counts()
        group = self._make_group(prompts, sampling, priority, client, adapter)
        ids = [SequenceId(number) for number in group.list_ids()]
        stream = TokenStream(
            len(ids),
            lambda index, is_complete: self._stop(ids[index], is_complete),
            self._readers.add,
        )
        with self._requests.hold(stream):
            self._streams.update(dict.fromkeys(ids, stream))
            self._backlog.add(ids, lengths, client)
            self._note_taken(lengths, client)
            self._note_held()
            try:
                await self._core.add(group)
                # The engine may have ended while a long prompt was prepared.
                self._requests.check_alive()
                yield stream
            finally:
                self._abort(ids)

    @property
    def adapters(self) -> Mapping[str, ServedAdapter]:
        """The adapters that requests may name."""
        return self._core.adapters.served

    @property
    def adapters_revision(self) -> int:
        """The number of changes of `adapters`."""
        return self._core.adapters.revision

    def check_lost_adapter(self, name: str) -> None:
        """Raise the reason why an adapter is not there yet: its core starts again.

        Raises:
          EngineRestarting
        """
        if name in self._lost_adapters:
            self._requests.check_alive()

    async def wait_adapters(self, revision: int) -> None:
        """Wait until so many changes of `adapters` are known here."""
        await self._core.adapters.wait_revision(revision)

    def count_adapter_requests(self) -> Mapping[str, int]:
        """Return the requests of each loaded adapter, by its name."""
        self._forget_counts()
        return {name: self._num_of_adapter[name] for name in self.adapters}

    def _forget_counts(self) -> None:
        for name in self._num_of_adapter.keys() - self.adapters.keys():
            del self._num_of_adapter[name]

    async def load_adapter(
        self, name: str, path: str, *, replaces: bool = False
    ) -> ServedAdapter:
        """Load an adapter beside the running requests; see AdapterView.load.

        Raises:
          AdapterRefused, InvalidAdapter
          EngineDied, EngineRestarting, EngineAsleep, ShuttingDown: no engine runs.
        """
        self.check_alive()
        async with self._requests.tell_end():
            # The model says which adapters it runs.
            await self._core.sleep.wake()
            self.check_alive()
            return await self._core.adapters.load(name, path, replaces=replaces)

    async def unload_adapter(self, name: str) -> None:
        """Take no further requests for an adapter; see AdapterView.unload.

        Raises:
          AdapterNotFound
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        self._requests.check_alive()
        async with self._requests.tell_end():
            await self._core.adapters.unload(name)

    def _list_work(self) -> dict[int, Owner | None]:
        return {number: stream.owner for number, stream in self._streams.items()}

    def _forget_jobs(self) -> None:
        self._streams.clear()
        self._backlog.clear()
        self._num_failures += 1
        for name, adapter in self.adapters.items():
            self._lost_adapters[name] = adapter.path

    def _note_restarted(self) -> None:
        if self._lost_adapters:
            self._has_restarted.set()
        else:
            super()._note_restarted()

    async def _load_again(self) -> None:
        """After each restart load the adapters of the lost core, until cancelled.

        Requests are taken when all are there. One whose files are gone is not served any more.
        """
        while True:
            await self._has_restarted.wait()
            self._has_restarted = trio.Event()
            num_failures = self._num_failures
            for name, path in [*self._lost_adapters.items()]:
                try:
                    await self._core.adapters.load(name, path)
                except EngineProcessDied:
                    break
                except RequestError as error:
                    logger.error("after the restart: %s", error)
                # Otherwise the core has failed meanwhile, and another restart follows.
                if num_failures == self._num_failures:
                    del self._lost_adapters[name]
            if num_failures == self._num_failures and not self._lost_adapters:
                super()._note_restarted()

    def _count_places(self, num_free: int, num_held: int) -> int:
        """Return how many sequences a request may have while others hold `num_held`.

        Args:
          num_free: the free places of its client.

        This is half of the free places, so requests with many sequences always leave
        room for requests with one. A request that can run at once is never refused.

        Source: Choudhury and Hahne 1998 (Dynamic Queue Length Thresholds), with alpha 1.
        """
        return max(num_free // 2, self._max_num_running - num_held, min(1, num_free))

    def _make_group(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        priority: int,
        client: Client,
        adapter: str,
    ) -> SequenceGroup:
        group = SequenceGroup(
            first_id=SequenceId(self._next_id),
            prompts=tuple(prompts),
            sampling=sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            priority=priority,
            request_id=name_owner(),
            client=client,
            adapter=adapter,
        )
        self._next_id += group.num_sequences
        return group

    def _stop(self, sequence_id: SequenceId, is_complete: bool) -> None:
        """End a sequence whose reader wants no more."""
        if self._streams.pop(sequence_id, None):
            self._backlog.finish(sequence_id, is_complete=is_complete)
            self._core.abort([sequence_id])
            self._note_held()

    def _abort(self, sequence_ids: Iterable[SequenceId]) -> None:
        living = [each for each in sequence_ids if self._streams.pop(each, None)]
        if living:
            self._backlog.drop(living)
            self._core.abort(living)
            self._note_held()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._readers.run)
            nursery.start_soon(self._load_again)
            await super().run(task_status=task_status)
            nursery.cancel_scope.cancel()

    def _deliver(self, deltas: Iterable[TokenDelta]) -> None:
        num_open = len(self._streams)
        for delta in deltas:
            stream = self._streams.get(delta.sequence_id)
            # A core in another process may not have heard of an abort yet.
            if stream is None:
                continue
            stream.push_nowait(delta)
            self._backlog.note(delta)
            if delta.finish_reason is not None or delta.error is not None:
                del self._streams[delta.sequence_id]
                is_complete = delta.error is None
                self._backlog.finish(delta.sequence_id, is_complete=is_complete)
        self._readers.flush()
        if len(self._streams) < num_open:
            self._observe_pace()
        if self.on_work is not None:
            self.on_work()
