"""The proxy that the environment names, as for curl: http_proxy, https_proxy, all_proxy, no_proxy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2

from ...config import RemoteConfig
from ...errors import needing_extra
from .answers import AnswerFailed

_SOCKS: Final = ("socks5", "socks5h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way to a server.

    Attributes:
      proxy: None goes straight.
      variable: the name of the proxy's variable; "" without one.
      failures: errors of a handshake outside of httpcore2.
    """

    proxy: httpcore2.Proxy | None = None
    variable: str = ""
    failures: tuple[type[Exception], ...] = ()


def find_route(config: RemoteConfig) -> Route:
    """Return the way to a server; no proxy leads to this machine.

    Raises:
      AnswerFailed: the address of the proxy is wrong; the message is silent about a password
        in it.
      MissingExtra: it speaks SOCKS, and the package for that is missing.
    """
    parts = urlsplit(config.url)
    host = parts.hostname or ""
    if config.uds is not None or _is_loopback(host) or proxy_bypass(host):
        return Route()
    proxies = getproxies()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if kind not in proxies:
        return Route()
    variable = f"{kind}_proxy"
    # Like curl, without http:// too.
    address = proxies[kind]
    address = address if "://" in address else f"http://{address}"
    proxy = _read_address(address, variable)
    failures: tuple[type[Exception], ...] = ()
    if urlsplit(address).scheme in _SOCKS:
        needed_by = f"the SOCKS proxy of {variable} in the environment"
        with needing_extra("socks", f"{needed_by} (unset it to use none)"):
            from socksio import SOCKSError
        # Codes that it does not know, and names that are too long for SOCKS.
        failures = (SOCKSError, NotImplementedError, OverflowError)
    return Route(proxy=proxy, variable=variable, failures=failures)


def _read_address(address: str, variable: str) -> httpcore2.Proxy:
    with suppress(ValueError):
        parts = urlsplit(address)
        is_whole = address.isascii() and bool(parts.hostname) and parts.port != 0
        if is_whole and parts.scheme in ("http", "https", *_SOCKS):
            return httpcore2.Proxy(address, auth=_read_secret(parts))
    raise AnswerFailed(
        f"{variable} in the environment is not a proxy for chat: it must be like "
        "http://127.0.0.1:3128 or socks5://127.0.0.1:1080; unset it to use none"
    )


def _read_secret(parts: SplitResult) -> tuple[bytes, bytes] | None:
    if parts.username is None:
        return None
    return unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
