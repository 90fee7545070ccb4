"""The names and the origins by which browsers may use the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
import ipaddress
import re
from typing import TYPE_CHECKING, Final

from hypercorn.typing import HTTPScope

from ...config import HttpConfig

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

Fields = list[tuple[bytes, bytes]]

# The headers that scripts may read besides the harmless ones.
_EXPOSED: Final = ", ".join(
    [
        *("Retry-After", "Request-Id", "X-Request-Id", "X-Should-Retry"),
        *(f"X-RateLimit-{each}-Tokens" for each in ("Limit", "Remaining", "Reset")),
        *(
            f"Anthropic-RateLimit-Tokens-{each}"
            for each in ("Limit", "Remaining", "Reset")
        ),
    ]
).encode()

_METHODS: Final = "DELETE, GET, POST"

# Browsers keep the answer to a preflight for two hours at most.
_MAX_AGE_SECONDS: Final = 7200

# Names of headers in a list. The client's own list is sent back to it.
_NAMES: Final = re.compile(r"[A-Za-z0-9_, -]{1,1024}")


class Cors:
    """The origins whose pages may use the API.

    Keys travel in headers that a page sets, so pages need no credentials of the browser.

    Args:
      origins: as browsers send them, such as https://chat.example; "*" stands for all.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(each.encode() for each in origins)
        self._allows_all = b"*" in self._origins

    def list_fields(self, request: Iterable[tuple[bytes, bytes]]) -> Fields:
        """Return the headers of an answer.

        Args:
          request: the headers of the request, with lower-case names.
        """
        origin = next((value for name, value in request if name == b"origin"), b"")
        # A cache must not give this answer to a page of another origin.
        fields = [] if self._allows_all else [(b"vary", b"Origin")]
        if origin and self._allows(origin):
            allowed = b"*" if self._allows_all else origin
            fields += [
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", _EXPOSED),
            ]
        return fields

    def answer_preflight(self, method: str, headers: Headers) -> dict[str, str] | None:
        """Answer the question of a browser whether a page may send a request.

        Returns:
          the headers of the answer; None if it is not such a question, or the page may not.
        """
        origin = headers.get("Origin", "").encode("latin-1")
        if method != "OPTIONS" or not self._allows(origin):
            return None
        if "Access-Control-Request-Method" not in headers:
            return None
        wanted = headers.get("Access-Control-Request-Headers", "")
        fields = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Max-Age": str(_MAX_AGE_SECONDS),
        }
        if _NAMES.fullmatch(wanted):
            fields["Access-Control-Allow-Headers"] = wanted
        return fields

    def _allows(self, origin: bytes) -> bool:
        return bool(origin) and (self._allows_all or origin in self._origins)


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
        if self._names:
            checks = "*" not in self._names
        elif self._has_keys or scope["scheme"] == "https":
            checks = False
        else:
            # A Unix socket has no address, and no browser reaches it.
            server = scope.get("server")
            checks = server is not None and _is_loopback(server[0])
        if not checks:
            return None
        # HTTP/2's :authority is here, too.
        hosts = (value for name, value in scope["headers"] if name == b"host")
        name = _read_name(next(hosts, b"").decode("latin-1"))
        return None if name in self._names or _is_fixed(name) else name


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
