"""Which addresses belong to the public internet.

A server that fetches what clients name could be made to ask its own network.
"""

from __future__ import annotations

from collections.abc import Iterable
import ipaddress

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Global unicast is all of IPv6 that is routed in public (RFC 4291, 2.4). The rest holds
# loopback, link-local, private, multicast and IPv4-mapped addresses.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")

# Parts of it that lead elsewhere: special purposes and Teredo (RFC 2928, 4380), examples
# (RFC 3849, 9637), and 6to4, which holds an IPv4 address (RFC 3056).
_NOT_PUBLIC_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16"),
    )
)

# What DNS64 answers in networks without IPv4: an IPv4 address stands in the last 32
# bits (RFC 6052, 2.1).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

# Global by Python's table, but relays into 6to4 (RFC 7526) and IETF's own.
_NOT_PUBLIC_IPV4 = tuple(map(ipaddress.IPv4Network, ("192.88.99.0/24", "192.0.0.0/24")))


def is_public(address: IPAddress) -> bool:
    """Tell whether an address belongs to a host of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        return address in _GLOBAL_UNICAST and not _is_in(address, _NOT_PUBLIC_IPV6)
    if address.is_multicast or address.is_reserved:
        return False
    return address.is_global and not _is_in(address, _NOT_PUBLIC_IPV4)


def _is_in(
    address: IPAddress,
    networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network],
) -> bool:
    return any(address in network for network in networks)
