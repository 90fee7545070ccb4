"""Finds descriptors and shared memory that outlive their requests.

The system does not say who opened a descriptor, so there are three rules:

* Shared memory has the id of its request in its name.
* A socket of a client must belong to a connection that the server knows.
* The number of all other descriptors must not rise each time. Libraries open some late, and
  keep them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
import os
import socket

from ...observe import Leak
from ...observe.process_holdings import ProcessHoldings

# After so many rises in a row, the next one is a leak.
_RISES = 2


class ProcessAudit:
    """Looks at one process while no request runs.

    Args:
      name: of the process, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_others: int | None = None
        self._num_rises = 0

    def find(
        self, holdings: ProcessHoldings, connections: Collection[int] | None = None
    ) -> Iterator[Leak]:
        """Yield leaks.

        Args:
          connections: the descriptors of open connections; None for another process.
        """
        for request_id, number in Counter(holdings.memory).items():
            yield Leak(
                kind="memory",
                key=(self._name, request_id),
                request_id=request_id or None,
                text=f"shared memory of {self._name}, {number} times",
            )
        unknown = dict(holdings.descriptors)
        if connections is not None:
            unknown = {k: v for k, v in unknown.items() if k not in connections}
            for number in _list_served(unknown):
                target = unknown.pop(number)
                yield Leak(
                    kind="descriptors",
                    key=(number, target),
                    request_id=None,
                    text=f"descriptor {number}, {target} of a client",
                )
        yield from self._watch_number(unknown)

    def _watch_number(self, others: dict[int, str]) -> Iterator[Leak]:
        num_before, self._num_others = self._num_others, len(others)
        if num_before is None or len(others) <= num_before:
            self._num_rises = 0
            return
        self._num_rises += 1
        if self._num_rises >= _RISES:
            newest = others[max(others)]
            yield Leak(
                kind="descriptors",
                key=(self._name, "rising"),
                request_id=None,
                text=(
                    f"{len(others)} descriptors of {self._name}, more each time, such as "
                    f"{newest}"
                ),
            )


def _list_served(descriptors: Mapping[int, str]) -> list[int]:
    """Return the descriptors of sockets that were accepted, by the listeners among them."""
    listeners, others = set(), {}
    for number, target in descriptors.items():
        if target.startswith("socket:"):
            address, listens = _read_socket(number)
            if listens:
                listeners.add(address)
            else:
                others[number] = address
    return [number for number, address in others.items() if address in listeners]


def _read_socket(number: int) -> tuple[object, bool]:
    """Return the address of a socket, without its host, and whether it listens."""
    # A copy, because its end closes it.
    with socket.socket(fileno=os.dup(number)) as sock:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        name = sock.getsockname()
    # A listener for all hosts accepts at each of them.
    return name[1] if isinstance(name, tuple) else name, bool(listens)
