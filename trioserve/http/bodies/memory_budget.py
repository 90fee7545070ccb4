"""A limit on the memory of all bodies, shared fairly between their senders."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

# Bodies up to this size are small: texts and chats, but not images and tensors.
SMALL_BYTES: Final = 65_536

# The part that is reserved for the first SMALL_BYTES of each body: 2,048 bodies with the
# default of 1 GiB. Most systems give a process fewer descriptors: 1,024.
_RESERVED_FRACTION: Final = 1 / 8

# The part of the remaining memory that one sender may hold. This is the dynamic threshold
# of switches with shared memory (Choudhury and Hahne 1998): a sender may hold three times
# as much as it leaves free. All senders behind a proxy count as one, so one sender must
# be able to get most of the memory. Some is still left for the next sender.
_SHARE: Final = 3 / 4


class MemoryBudget:
    """Counts the bytes that each peer holds, and refuses more than its share.

    The shares keep all bodies below the limit. Only the event loop's thread may use this.

    Args:
      limit: bytes of all bodies together.

    Attributes:
      num_bytes: bytes that were taken and not given back.
      num_refused: calls of `take` that were refused.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self.num_bytes = 0
        self.num_refused = 0

    def take(self, num_bytes: int, *, peer: str, is_large: bool) -> bool:
        """Count bytes as held, unless they are too many; returns whether they are held.

        Args:
          peer: the name of the sender, from name_peer.
          is_large: with these bytes, the body is longer than SMALL_BYTES.
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
        assert (
            0 <= num_bytes <= self._held[peer]
        ), "only bytes that were taken can be given back"
        self.num_bytes -= num_bytes
        self._held[peer] -= num_bytes
        if not self._held[peer]:
            del self._held[peer]


def name_peer(client: tuple[str, int] | None) -> str:
    """Return the name of the sender that a share belongs to.

    Args:
      client: the address in the ASGI scope. Unix sockets have none, so all their peers
        count as one sender.
    """
    host = "" if client is None else client[0]
    try:
        address = ip_address(host)
    except ValueError:
        # hypercorn's ProxyFixMiddleware copies the address from a header.
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # RFC 6177: a site gets a /64 or more, so one sender may use all addresses in it.
    return str(ip_network((int(address), 64), strict=False))
