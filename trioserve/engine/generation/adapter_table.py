"""The adapters of an engine: their names, their numbers, and the sequences that use them.

    begin --> finish    a load; give_up ends one that fails
    use --> leave       a sequence
    unload              the name is free at once
    lose                the device has it no more

An adapter is *served* while requests may name it. One that is unloaded or replaced stays on the
device until the last of its sequences has ended. All of it is decided here, without a clock and
without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...errors import AdapterNotFound, AdapterRefused
from ...types.adapter import (
    AdapterFacts,
    AdapterSource,
    ServedAdapter,
    explain_name,
)


class AdapterTable:
    """Decides which adapters are served, and which the device may drop.

    Args:
      is_taken: says whether a name belongs to the model.
      limit: the most adapters that the device holds.

    Attributes:
      number_of: the adapter of each sequence that has one.
    """

    def __init__(self, is_taken: Callable[[str], bool], limit: int) -> None:
        self._is_taken = is_taken
        self._limit = limit
        self._num_begun = 0
        self._loading: dict[int, AdapterSource] = {}
        self._served: dict[str, ServedAdapter] = {}
        # The adapters on the device, and the sequences of each with their indices.
        self._names: dict[int, str] = {}
        self._users: dict[int, dict[int, int]] = {}
        self.number_of: dict[int, int] = {}

    @property
    def served(self) -> tuple[ServedAdapter, ...]:
        """The adapters that requests may name, in the order of their loads."""
        return tuple(self._served.values())

    @property
    def num_held(self) -> int:
        """The adapters on the device, and on their way to it."""
        return len(self._users) + len(self._loading)

    def begin(self, name: str, path: str, *, replaces: bool) -> AdapterSource:
        """Begin a load. A name is loaded once at a time, which callers see to.

        Args:
          replaces: the name may be served already; its old adapter is served until the load
            has ended.

        Raises:
          AdapterRefused: the name cannot be used, or there are too many adapters.
        """
        if fault := explain_name(name):
            raise AdapterRefused("lora_name", fault)
        if self._is_taken(name):
            raise AdapterRefused("lora_name", f"{name!r} is a name of the model")
        is_new = name not in self._served
        if not (is_new or replaces):
            raise AdapterRefused(
                "lora_name",
                f"the adapter {name!r} is loaded already; set load_inplace to replace it",
            )
        # The old adapter of a name gives its place to the new one.
        if self.num_held + is_new > self._limit:
            raise AdapterRefused(
                "lora_name",
                f"{self.num_held} adapters are loaded or in use, and at most {self._limit} "
                "are possible (--max-adapters)",
            )
        self._num_begun += 1
        source = AdapterSource(number=self._num_begun, name=name, path=path)
        self._loading[source.number] = source
        return source

    def give_up(self, source: AdapterSource) -> None:
        """End a load that has failed."""
        del self._loading[source.number]

    def finish(self, source: AdapterSource, facts: AdapterFacts) -> list[int]:
        """Serve an adapter that is loaded; returns the numbers that the device may drop."""
        del self._loading[source.number]
        self._users[source.number] = {}
        self._names[source.number] = source.name
        old = self._served.get(source.name)
        self._served[source.name] = ServedAdapter(path=source.path, facts=facts)
        return [] if old is None else self._drop_unused(old.facts.number)

    def unload(self, name: str) -> list[int]:
        """Serve an adapter no more; returns the numbers that the device may drop.

        Raises:
          AdapterNotFound
        """
        if name not in self._served:
            raise AdapterNotFound(name, param="lora_name")
        return self._drop_unused(self._served.pop(name).facts.number)

    def use(self, name: str, sequence_ids: Iterable[int]) -> AdapterFacts:
        """Count the sequences of a new request of an adapter, until each leaves.

        Raises:
          AdapterNotFound
        """
        if name not in self._served:
            raise AdapterNotFound(name)
        facts = self._served[name].facts
        for index, sequence_id in enumerate(sequence_ids):
            self._users[facts.number][sequence_id] = index
            self.number_of[sequence_id] = facts.number
        return facts

    def leave(self, sequence_ids: Iterable[int]) -> list[int]:
        """Forget sequences that have ended; returns the numbers that the device may drop.

        Sequences without an adapter, and those that have left already, change nothing.
        """
        dropped = []
        for sequence_id in sequence_ids:
            number = self.number_of.pop(sequence_id, None)
            if number is not None:
                del self._users[number][sequence_id]
                dropped += self._drop_unused(number)
        return dropped

    def holds(self, number: int) -> bool:
        """Return whether the device has an adapter."""
        return number in self._users

    def lose(self, number: int) -> tuple[str, dict[int, int]]:
        """Forget an adapter that the device has lost.

        Returns:
          its name, and its sequences with their indices in their requests; they have left
        """
        name, users = self._names.pop(number), self._users.pop(number)
        if name in self._served and self._served[name].facts.number == number:
            del self._served[name]
        for sequence_id in users:
            del self.number_of[sequence_id]
        return name, users

    def _drop_unused(self, number: int) -> list[int]:
        """Forget an adapter that nobody uses and no request may name."""
        is_served = any(each.facts.number == number for each in self._served.values())
        if is_served or self._users[number]:
            return []
        del self._users[number], self._names[number]
        return [number]
