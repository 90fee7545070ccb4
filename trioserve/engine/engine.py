"""The base of both engines: start, end, restart, and the state that servers read.

    TokenEngine    (generation/engine.py)   token ids in, token ids out
    TensorEngine   (pooling/engine.py)      token ids in, tensors out

An engine holds the requests and drives a core (core.py), which computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import trio

from ..config import SchedulingPolicy
from ..errors import EngineAsleep, EngineRestarting, InvalidParameter, QueueFull
from ..observe import EngineAudit, Owner
from ..types.admission import Pace, round_retry
from ..types.client import Client
from ..types.model_info import ModelInfo
from ..types.sleep import SleepLevel, SleepState
from .backlog import ClientBacklog
from .core import Core
from .leaks import audit_core
from .peer_work import PeerWork
from .requests import OpenRequests, Restarts, StartedCall, log_failure

CoreT = TypeVar("CoreT", bound=Core[Any, Any, Any])
OutputsT = TypeVar("OutputsT")
CountersT = TypeVar("CountersT")

# Priorities lie between this number and its negative. With larger ones a request could be
# passed by others for hours, since one level is worth 10 seconds of waiting.
MAX_PRIORITY = 100


def check_priority(priority: int, policy: SchedulingPolicy) -> None:
    """Refuse a priority that the policy does not allow.

    Raises:
      InvalidParameter
    """
    if priority != 0 and policy != "priority":
        raise InvalidParameter(
            "priority", "is only taken with --scheduling-policy priority"
        )
    if abs(priority) > MAX_PRIORITY:
        raise InvalidParameter(
            "priority", f"must be between {-MAX_PRIORITY} and {MAX_PRIORITY}"
        )


class Engine(ABC, Generic[CoreT, OutputsT, CountersT]):
    """Holds requests and drives the core that computes them; runs in a nursery.

    Args:
      core: computes, in this process or in another one.
      info: the bounds that every request is checked against.
      backlog: its open work.
      max_num_places: the most sequences or texts of all open requests together; more are
        refused.
      max_queued_tokens: the most tokens of prompts or texts that wait.
      scheduling_policy: "priority" lets requests have a priority.
      reopen: returns a new core after a failure; by default the engine fails with its
        core.

    Attributes:
      on_work: is called when describe_work has changed; None without peers.
      on_sleep: is called when sleep_state has changed; None if nobody wants to know.
    """

    # The word for places, and the field of a request that asks for them.
    _places: ClassVar[tuple[str, str]]

    def __init__(
        self,
        core: CoreT,
        *,
        info: ModelInfo,
        backlog: ClientBacklog,
        max_num_places: int,
        max_queued_tokens: int | None,
        scheduling_policy: SchedulingPolicy = "fcfs",
        reopen: Callable[[], Awaitable[CoreT]] | None = None,
    ) -> None:
        self.info = info
        self._core = core
        self._held = backlog
        self._max_num_places = max_num_places
        self._max_queued_tokens = max_queued_tokens
        self._reopen = reopen
        self._scheduling_policy: SchedulingPolicy = scheduling_policy
        self._requests = OpenRequests()
        self._pace = Pace()
        self.on_work: Callable[[], None] | None = None
        self.on_sleep: Callable[[], None] | None = None

    @property
    def is_alive(self) -> bool:
        """True if requests can be opened now."""
        return self._requests.is_alive and not self.sleep_state.refuses_requests

    def check_alive(self) -> None:
        """Raise the reason why no request can be opened now, if there is one.

        Raises:
          EngineDied, EngineRestarting, EngineAsleep, ShuttingDown
        """
        self._requests.check_alive()
        if self.sleep_state.refuses_requests:
            raise EngineAsleep(self.sleep_state.failure)

    @property
    def sleep_state(self) -> SleepState:
        return self._core.sleep.state

    async def sleep(self, level: SleepLevel, *, ends_requests: bool) -> None:
        """Let the core give memory back; see SleepView.sleep."""
        self._requests.check_alive()
        async with self._requests.tell_end():
            await self._core.sleep.sleep(level, ends_requests=ends_requests)

    async def wake(self) -> None:
        """Wake the core; see SleepView.wake.

        Raises:
          EngineAsleep: it cannot wake.
        """
        self._requests.check_alive()
        async with self._requests.tell_end():
            await self._core.sleep.wake()
        if failure := self.sleep_state.failure:
            raise EngineAsleep(failure)

    def check_room(
        self,
        num_new: int,
        num_tokens: int = 0,
        client: Client | None = None,
        *,
        param: str | None = None,
    ) -> None:
        """Refuse a request that has no room now.

        A server asks before it prepares a prompt, and the engine asks when it takes a request.

        Args:
          num_new: sequences or texts of the request.
          num_tokens: their tokens, about.
          client: the one that it belongs to; None stands for any.
          param: the request's field that asks for them, for errors.

        Raises:
          InvalidParameter: the request has more sequences or texts than ever have room.
          QueueFull: other requests have too many of them, or too many tokens.
          EngineDied, EngineRestarting, EngineAsleep, ShuttingDown: no engine runs.
        """
        self.check_alive()
        name = None if client is None else client.name
        self._check_places(num_new, name, param)
        self._check_tokens(num_tokens, name)

    def describe_work(self) -> PeerWork:
        """Return the open work of this engine, for its peers on the same core."""
        return self._held.describe_own()

    def set_peer(self, number: int, work: PeerWork | None) -> None:
        """Count the present work of a peer; None if it has ended."""
        self._held.set_peer(number, work)
        self._observe_pace()

    def counters(self) -> CountersT:
        """Return the counts since the start of the core."""
        counters: CountersT = self._core.counters()
        return counters

    async def audit(self, *, process: bool = False) -> EngineAudit:
        """Look for work that outlives its request; see audit_core.

        Args:
          process: also look at the core's process.

        Raises:
          EngineProcessDied
        """
        known = self._list_work()
        return audit_core(await self._core.inspect(lost=True, process=process), known)

    async def count_blocks(self, owner: Owner) -> int:
        """Return the KV blocks of a request, once for each of its sequences.

        Raises:
          EngineProcessDied
        """
        own = {number for number, each in self._list_work().items() if each is owner}
        if not own:
            return 0
        held = await self._core.inspect()
        return sum(each.num_blocks for each in held.work if each.id in own)

    def after_aborts(self, call: Callable[[], None]) -> None:
        """Make a call when the core holds nothing of the requests that have ended."""
        self._core.after_aborts(call)

    def stalled_seconds(self) -> float:
        """Return the seconds since the running step began; 0 if none runs."""
        return self._core.stalled_seconds()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Compute requests until cancelled; see OpenRequests.serve."""
        await self._requests.serve(partial(self._run_cores, task_status))

    def close_requests(self, error: Exception) -> None:
        """Raise `error` in every open request, and in every attempt to open one.

        A stream gives its unread deltas first. Only the first call counts.
        """
        self._requests.close(error)

    def _check_places(
        self, num_new: int, client: str | None, param: str | None
    ) -> None:
        held = self._held.places
        name, field = self._places
        most = self._count_places(self._max_num_places, 0)
        if num_new > most:
            raise InvalidParameter(
                param or field, f"at most {most} {name} are possible, got {num_new}"
            )
        num_free = held.count_free(self._max_num_places, client)
        num_possible = self._count_places(num_free, held.total)
        if num_new > num_possible:
            raise QueueFull(
                name,
                num_open=held.total,
                num_possible=max(0, num_possible),
                num_new=num_new,
                retry_after_seconds=self._pace.estimate_seconds(
                    trio.current_time(), held.total
                ),
            )

    def _count_places(self, num_free: int, num_held: int) -> int:
        """Return how many places a request may have while others hold `num_held`.

        Args:
          num_free: the free places of its client.
        """
        return num_free

    def _check_tokens(self, num_new: int, client: str | None) -> None:
        """Refuse a request whose prompt tokens have no room now.

        A request may have all that is left of the bound. Of the places for sequences it may
        have half, so that there is room for others. That rule would refuse a prompt of more
        than half of the bound whenever anything waits, and no later try would help.
        """
        limit, queued = self._max_queued_tokens, self._held.queued_tokens
        if limit is None:
            return
        num_free = queued.count_free(limit, client)
        # A request with more tokens than its client's share would never be taken otherwise.
        if not queued.count(client) or num_new <= num_free:
            return
        seconds = self._core.rates().token * (num_new - num_free)
        raise QueueFull(
            "prompt tokens",
            num_open=queued.total,
            num_possible=max(0, num_free),
            num_new=num_new,
            retry_after_seconds=round_retry(seconds),
        )

    def _note_held(self) -> None:
        """Note that the places of open requests have changed."""
        self._observe_pace()
        self._note_work()

    def _observe_pace(self) -> None:
        self._pace.observe(trio.current_time(), self._held.places.total)

    def _note_work(self) -> None:
        """Tell the peers that describe_work has changed."""
        if self.on_work is not None:
            self.on_work()

    @abstractmethod
    def _deliver(self, outputs: OutputsT) -> None:
        """Hand the outputs of a step to their requests."""

    @abstractmethod
    def _list_work(self) -> dict[int, Owner | None]:
        """Return the owners of all work that the core may hold, by its id there."""

    @abstractmethod
    def _forget_jobs(self) -> None:
        """Forget everything that a core has lost by its failure."""

    def _note_restarted(self) -> None:
        """Take requests again: the core that follows a failed one runs."""
        self._requests.resume()

    def _note_sleep(self) -> None:
        if self.sleep_state.fails_requests:
            self._requests.fail_all(EngineAsleep(self.sleep_state.failure))
        if self.on_sleep is not None:
            self.on_sleep()

    async def _run_cores(self, task_status: trio.TaskStatus[None]) -> None:
        restarts = Restarts()
        while True:
            self._core.sleep.on_change = self._note_sleep
            try:
                await self._core.run(self._deliver, task_status=task_status)
            except Exception as error:
                if self._reopen is None or not restarts.take():
                    raise
                log_failure("the engine failed and starts again", error)
            self._requests.pause(EngineRestarting())
            self._forget_jobs()
            # A new one, because the lost work must not count as done.
            self._pace = Pace()
            assert self._reopen is not None, "without it the failure was raised"
            self._core = await self._reopen()
            task_status = StartedCall(self._note_restarted)
