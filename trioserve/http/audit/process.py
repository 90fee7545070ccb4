"""Finds descriptors and shared memory that outlive their requests.

The system does not say who opened a descriptor, so there are three rules:

* Shared memory has the id of its request in its name.
* A socket of a client must belong to a connection that the server knows.
* The number of all other descriptors must not rise again and again. Libraries open some late,
  and keep them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
import os
import socket

from ...observe import Leak
from ...observe.process_holdings import ProcessHoldings

# So many rises in so many looks are a leak. These are guesses: a server opens fewer things
# late, and a slower leak takes months to do harm.
_RISES = 4
_LOOKS = 120

# A rise must last for so many looks, as connections of a burst do not. A guess, too.
_LASTING_LOOKS = 5


class ProcessAudit:
    """Looks at one process while no request runs.

    Args:
      name: of the process, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers: deque[int] = deque(maxlen=_LOOKS)

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
        self._numbers.append(len(others))
        if _count_rises(self._numbers) >= _RISES:
            newest = others[max(others)]
            yield Leak(
                kind="descriptors",
                key=(self._name, "rising"),
                request_id=None,
                text=(
                    f"{len(others)} descriptors of {self._name}, more and more, such as "
                    f"{newest}"
                ),
            )


def _count_rises(numbers: Iterable[int]) -> int:
    """Count the rises that have lasted, and that no later fall has taken back."""
    # The lowest number from each look on, the last one first.
    lowest = [*accumulate(reversed([*numbers]), min)]
    return len(set(lowest[_LASTING_LOOKS - 1 :])) - 1


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
