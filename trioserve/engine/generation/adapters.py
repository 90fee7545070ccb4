"""The adapters of a core: what requests may name, and the loads.

AdapterView     the served adapters, as an engine sees them
CoreAdapters    the truth, beside the scheduler; adapter_table.py decides
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
import logging
from typing import Protocol

import trio

from ...types.adapter import AdapterFacts, AdapterSource, ServedAdapter
from .adapter_table import AdapterTable

logger = logging.getLogger(__name__)


class AdapterView(ABC):
    """The adapters of a core, in the same process or in another one.

    Attributes:
      served: the adapters that requests may name, by their names.
      revision: the number of changes of `served` since the start of the core.
    """

    def __init__(self) -> None:
        self.served: dict[str, ServedAdapter] = {}
        self.revision = 0
        self._changed = trio.Event()

    @abstractmethod
    async def load(
        self, name: str, path: str, *, replaces: bool = False
    ) -> ServedAdapter:
        """Load an adapter beside the running steps.

        Args:
          path: absolute.
          replaces: the name may be served already. Its requests go on with the old adapter.

        Raises:
          AdapterRefused: the name cannot be used, or there are too many adapters.
          InvalidAdapter: its files are wrong, or the model cannot run it.
          EngineProcessDied
        """

    @abstractmethod
    async def unload(self, name: str) -> None:
        """Take no further requests for an adapter; those that have come go on.

        Raises:
          AdapterNotFound, EngineProcessDied
        """

    async def wait_revision(self, revision: int) -> None:
        """Wait until so many changes are known here."""
        while self.revision < revision:
            await self._changed.wait()

    def _show(self, served: Iterable[ServedAdapter], revision: int) -> None:
        """Take the present state."""
        self.served = {each.name: each for each in served}
        self.revision = revision
        self._changed.set()
        self._changed = trio.Event()


class _Executor(Protocol):
    """The methods of an executor that this file calls."""

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts: ...

    def drop_adapter(self, number: int) -> None: ...


class CoreAdapters(AdapterView):
    """The adapters of a core in this process.

    Args:
      is_taken, limit: see AdapterTable.

    Attributes:
      on_change: is called when `served` has changed.
      number_of: the adapter of each sequence that has one. Each step looks whether there is any.
    """

    def __init__(
        self, executor: _Executor, is_taken: Callable[[str], bool], limit: int
    ) -> None:
        super().__init__()
        self.on_change: Callable[[], None] | None = None
        self._executor = executor
        self._table = AdapterTable(is_taken, limit)
        self.number_of: Mapping[int, int] = self._table.number_of
        self._locks: dict[str, trio.Lock] = {}

    @property
    def num_held(self) -> int:
        """The adapters on the device, and on their way to it."""
        return self._table.num_held

    async def load(
        self, name: str, path: str, *, replaces: bool = False
    ) -> ServedAdapter:
        async with self._hold(name):
            source = self._table.begin(name, path, replaces=replaces)
            try:
                facts = await self._executor.load_adapter(source)
            except BaseException:
                self._table.give_up(source)
                raise
            loaded = ServedAdapter(path=path, facts=facts)
            self._drop(self._table.finish(source, facts))
            self._publish()
            megabytes = facts.num_bytes / 2**20
            logger.info(
                "loaded the adapter %s: rank %d, %.1f MiB", name, facts.rank, megabytes
            )
            return loaded

    async def unload(self, name: str) -> None:
        async with self._hold(name):
            self._drop(self._table.unload(name))
            self._publish()
            logger.info("unloaded the adapter %s", name)

    def use(self, name: str, sequence_ids: Iterable[int]) -> AdapterFacts:
        """Count new sequences of an adapter, until each leaves.

        Raises:
          AdapterNotFound
        """
        return self._table.use(name, sequence_ids)

    def holds(self, number: int) -> bool:
        """Return whether an adapter is on the device."""
        return self._table.holds(number)

    def lose(self, number: int) -> tuple[str, dict[int, int]]:
        """Serve an adapter no more that the device has lost; see AdapterTable.lose."""
        lost = self._table.lose(number)
        self._publish()
        return lost

    def leave(self, sequence_ids: Iterable[int]) -> None:
        """Forget sequences that have ended; an unused adapter leaves the device."""
        self._drop(self._table.leave(sequence_ids))

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._executor.drop_adapter(number)

    def _publish(self) -> None:
        self._show(self._table.served, self.revision + 1)
        if self.on_change is not None:
            self.on_change()

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[None]:
        """Let one load or unload of a name go on at a time, in the order of their calls."""
        lock = self._locks.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                # Names may change for ever.
                self._locks.pop(name, None)
