"""Memory for the bodies of all requests, and its division among their senders."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

# A body up to this size is small. Texts and chats are; images and tensors are not.
SMALL_BYTES: Final = 65_536

# Kept for the first SMALL_BYTES of each body: 2,048 bodies of the default's 1 GiB. That
# is more than the 1,024 descriptors that most systems give a process.
_RESERVED_FRACTION: Final = 1 / 8

# One sender's part of what the others leave. It is the dynamic threshold of switches with
# shared memory (Choudhury and Hahne 1998): a sender may hold three times as much as it
# leaves free. Behind a proxy all senders are one, so it gets most of the memory; and yet
# the next one always finds some.
_SHARE: Final = 3 / 4


class MemoryBudget:
    """Counts the bytes that each peer holds, in the event loop's thread alone.

    It refuses more than a peer's share, and that refuses more than the limit.

    Args:
      limit: bytes of all bodies together.

    Attributes:
      num_bytes: taken and not given back.
      num_refused: calls of take that were refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self.num_bytes = 0
        self.num_refused = 0

    def take(self, num_bytes: int, *, peer: str, is_large: bool) -> bool:
        """Count bytes as held, unless that were too many.

        Args:
          peer: the sender, as name_peer names it.
          is_large: the body is longer than SMALL_BYTES with these bytes.
        """
        room = self._limit * (1 - _RESERVED_FRACTION) if is_large else self._limit
        held = self._held[peer]
        if held + num_bytes > _SHARE * (room - (self.num_bytes - held)):
            self.num_refused += 1
            return False
        self._held[peer] += num_bytes
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int, *, peer: str) -> None:
        assert 0 <= num_bytes <= self._held[peer], "only what was taken is given back"
        self.num_bytes -= num_bytes
        self._held[peer] -= num_bytes
        if not self._held[peer]:
            del self._held[peer]


def name_peer(client: tuple[str, int] | None) -> str:
    """Name the sender to whom a share belongs.

    Args:
      client: the address in the ASGI scope. Unix sockets have none; their peers are one,
        as peers behind a proxy are.
    """
    host = "" if client is None else client[0]
    try:
        address = ip_address(host)
    except ValueError:
        # hypercorn's ProxyFixMiddleware copies a header.
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # RFC 6177: a site gets a /64 or more, so one sender has all addresses in it.
    return str(ip_network((int(address), 64), strict=False))
