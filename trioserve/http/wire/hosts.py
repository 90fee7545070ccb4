"""The names under which clients may reach the server (the Host header).

A web page can point its own domain name to this machine (DNS rebinding). For the browser, the
server is then of the page's origin, which needs no CORS; the Host header still has the name.
"""

from __future__ import annotations

from functools import lru_cache
import ipaddress
import re

from hypercorn.typing import HTTPScope

from ...config import HttpConfig

# RFC 3986, 3.2.2; an IPv6 address stands in brackets.
_HOST = re.compile(r"(?:\[([^\[\]@]+)\]|([^:\[\]@]*))(?::\d*)?")


class AllowedHosts:
    """The names that the options of a server allow.

    localhost and addresses are allowed: no page can point them elsewhere. Other names are
    checked if there are names to compare them with, or if everybody on this machine may use the
    server: it has no keys, and the connection comes over loopback, without TLS. A browser would
    not take the certificate for the name of a page.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._names = frozenset(name.lower() for name in config.allowed_host)
        self._has_keys = bool(config.api_key or config.api_key_file)

    @property
    def takes_keys(self) -> bool:
        """True if a key would let all names in."""
        return not self._names

    def find_foreign(self, scope: HTTPScope) -> str | None:
        """Return the name of a request that may not come by it; None if the request may."""
        if not self._checks(scope):
            return None
        # HTTP/2's :authority is here, too.
        hosts = (value for name, value in scope["headers"] if name == b"host")
        name = _read_name(next(hosts, b"").decode("latin-1"))
        return None if name in self._names or _is_fixed(name) else name

    def _checks(self, scope: HTTPScope) -> bool:
        if self._names:
            return "*" not in self._names
        if self._has_keys or scope["scheme"] == "https":
            return False
        # A Unix socket has no address, and no browser reaches it.
        server = scope.get("server")
        return server is not None and _is_loopback(server[0])


def _read_name(host: str) -> str:
    """Return the name or the address in a Host header, or all of a header that has none."""
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return host
    name: str = match[1] or match[2]
    return name.lower().removesuffix(".")


def _is_fixed(name: str) -> bool:
    """Return whether a name needs no look-up. HTTP/1.0 may have none."""
    return (
        name in ("", "localhost")
        or name.endswith(".localhost")
        or _read_address(name) is not None
    )


def _read_address(
    name: str,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        # Behind the sign is the network interface.
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


@lru_cache(64)
def _is_loopback(address: str) -> bool:
    found = _read_address(address)
    return found is not None and found.is_loopback
