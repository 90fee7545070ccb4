"""Recognises addresses of the public internet.

A server that fetches URLs of its clients must not fetch from its own network.
"""

from __future__ import annotations

from collections.abc import Iterable
import ipaddress

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Only global unicast is routed on the public internet (RFC 4291, 2.4). The rest of IPv6
# has loopback, link-local, private, multicast and IPv4-mapped addresses.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")

# Exceptions in global unicast: special purposes and Teredo (RFC 2928, 4380), examples
# (RFC 3849, 9637), and 6to4, which contains an IPv4 address (RFC 3056).
_NOT_PUBLIC_IPV6 = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16"))
)

# DNS64 answers with such addresses in networks without IPv4. The last 32 bits are an
# IPv4 address (RFC 6052, 2.1).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

# Python's table calls these global, but they are relays into 6to4 (RFC 7526) and
# addresses for protocols of the IETF.
_NOT_PUBLIC_IPV4 = tuple(map(ipaddress.IPv4Network, ("192.88.99.0/24", "192.0.0.0/24")))


def is_public(address: IPAddress) -> bool:
    """Return whether an address belongs to a host of the public internet."""
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
