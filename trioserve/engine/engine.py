"""The base of both engines: start, end, restart, and the state that servers read.

    TokenEngine    (generation/engine.py)   token ids in, token ids out
    TensorEngine   (pooling/engine.py)      token ids in, tensors out

An engine holds the requests and drives a core (core.py), which computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from ..config import SchedulingPolicy
from ..errors import EngineRestarting
from ..observe import EngineAudit, Owner
from ..types.model_info import ModelInfo
from ..types.pace import Pace
from .core import Core
from .leaks import audit_core
from .peer_work import PeerWork
from .requests import OpenRequests, log_failure
from .restarts import Restarts, StartedCall

CoreT = TypeVar("CoreT", bound=Core[Any, Any, Any])
OutputsT = TypeVar("OutputsT")
CountersT = TypeVar("CountersT")


class Engine(ABC, Generic[CoreT, OutputsT, CountersT]):
    """Holds requests and drives the core that computes them; runs in a nursery.

    Args:
      core: computes, in this process or in another one.
      info: the bounds that every request is checked against.
      scheduling_policy: "priority" lets requests have a priority.
      reopen: returns a new core after a failure; by default the engine fails with its
        core.

    Attributes:
      on_work: is called when describe_work has changed; None without peers.
    """

    def __init__(
        self,
        core: CoreT,
        *,
        info: ModelInfo,
        scheduling_policy: SchedulingPolicy = "fcfs",
        reopen: Callable[[], Awaitable[CoreT]] | None = None,
    ) -> None:
        self.info = info
        self._core = core
        self._reopen = reopen
        self._scheduling_policy: SchedulingPolicy = scheduling_policy
        self._requests = OpenRequests()
        self._pace = Pace()
        self.on_work: Callable[[], None] | None = None

    @property
    def is_alive(self) -> bool:
        """True if requests can be opened now."""
        return self._requests.is_alive

    def check_alive(self) -> None:
        """Raise the reason why no request can be opened now, if there is one.

        Raises:
          EngineDied, EngineRestarting, ShuttingDown
        """
        self._requests.check_alive()

    @abstractmethod
    def check_room(self, num_new: int) -> None:
        """Raise the reason why a request has no room now.

        Args:
          num_new: sequences or texts of the request.
        """

    @abstractmethod
    def describe_work(self) -> PeerWork:
        """Return the open work of this engine, for its peers on the same core."""

    @abstractmethod
    def set_peer(self, number: int, work: PeerWork | None) -> None:
        """Count the present work of a peer; None if it has ended."""

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

    async def _run_cores(self, task_status: trio.TaskStatus[None]) -> None:
        restarts = Restarts()
        while True:
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
            task_status = StartedCall(self._requests.resume)
