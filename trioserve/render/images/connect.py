"""Opens connections to allowed addresses only.

A name is resolved here, once. Every address is checked, and the connection goes to a
checked address. So a name whose address changes in between (DNS rebinding) gains
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import ipaddress
import ssl

import httpcore2
import trio

from .address import IPAddress

# A host with more addresses is reached by one of its first ones.
_MAX_ADDRESSES = 8


class CheckedBackend(httpcore2.TrioBackend):
    """Opens TCP connections for httpcore, to addresses that are allowed.

    Args:
      is_allowed: is called for each address of a host. If one address is not allowed,
        no connection is opened.
    """

    def __init__(self, is_allowed: Callable[[IPAddress], bool]) -> None:
        self._is_allowed = is_allowed

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers; each gets an equal time."""
        addresses = await self._resolve(host, port)
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._connect(address, port, share, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._connect(addresses[-1], port, share, socket_options)

    async def _connect(
        self,
        address: IPAddress,
        port: int,
        seconds: float | None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None,
    ) -> httpcore2.AsyncNetworkStream:
        # A numeric address, so nothing is resolved again.
        stream = await super().connect_tcp(
            str(address), port, timeout=seconds, socket_options=socket_options
        )
        return _Stream(stream)

    async def _resolve(self, host: str, port: int) -> list[IPAddress]:
        try:
            found = await trio.socket.getaddrinfo(
                host, port, type=trio.socket.SOCK_STREAM
            )
        except (OSError, UnicodeError, OverflowError) as error:
            raise httpcore2.ConnectError("the name has no address") from error
        # Each address once, in the order of preference.
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        unique = list(dict.fromkeys(addresses))
        if not unique or not all(map(self._is_allowed, unique)):
            raise httpcore2.ConnectError("the name has an address that is not allowed")
        return unique[:_MAX_ADDRESSES]


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that is closed if the TLS handshake fails.

    httpcore leaves it open if a deadline ends the handshake.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(
        self, max_bytes: int, timeout: float | None = None  # noqa: ASYNC109
    ) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(
        self, buffer: bytes, timeout: float | None = None  # noqa: ASYNC109
    ) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
