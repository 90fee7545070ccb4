"""Replaces hypercorn's classes by the guarded ones."""

from __future__ import annotations

from importlib.metadata import version
from inspect import signature
import logging
import pkgutil
from typing import Any

import hypercorn.config
import hypercorn.protocol
import hypercorn.trio.run

from ...config import HttpConfig
from ...errors import StartupError
from .descriptors import Connections
from .http1 import GuardedH11
from .http2 import GuardedH2
from .server import GuardedServer
from .windows import GuardedBuffer


def guard_connections(config: HttpConfig) -> None:
    """Guard every connection by the options of a server; see install_guard."""
    install_guard(
        enable_h2c=config.enable_h2c,
        write_timeout_seconds=config.write_timeout,
        max_connections=config.max_connections,
        max_connections_per_address=config.max_connections_per_address,
    )


def install_guard(
    *,
    enable_h2c: bool = False,
    write_timeout_seconds: float = 30.0,
    max_connections: int | None = None,
    max_connections_per_address: int | None = None,
) -> None:
    """Guard every connection that hypercorn accepts from now on.

    A second call only replaces the values, which are global in the process.

    Args:
      enable_h2c: speak HTTP/2 without TLS to clients that begin with its preface.
      write_timeout_seconds: a peer that does not take 64 KiB in this time is dropped. An
        HTTP/2 window must let half of that pass in half the time.
      max_connections, max_connections_per_address: see descriptors.Connections.

    Raises:
      StartupError: hypercorn or h11 is not the release whose private names are used.
    """
    _check_names()
    GuardedServer.write_timeout_seconds = write_timeout_seconds
    GuardedServer.connections = Connections(
        max_connections, max_connections_per_address
    )
    GuardedH11.enable_h2c = enable_h2c
    logging.getLogger("trio.serve_listeners").addFilter(_free_descriptor)
    # The same rate, but stalled streams end well before a drain of 30 seconds does.
    GuardedH2.window_timeout_seconds = write_timeout_seconds / 2
    for place, guarded in _PATCHES.items():
        module, _, name = place.partition(":")
        setattr(pkgutil.resolve_name(module), name, guarded)


def list_connections() -> set[int]:
    """Return the descriptors of all open connections."""
    return GuardedServer.connections.list_descriptors()


def _free_descriptor(record: logging.LogRecord) -> bool:
    """Free a descriptor when trio logs that accept failed, and drop that log line.

    trio reports the failure in no other way. It tries again after a tenth of a second.
    """
    GuardedServer.connections.free_descriptor()
    return False


# The places where hypercorn looks up its connection classes, and their replacements.
_PATCHES: dict[str, type] = {
    "hypercorn.trio.run:TCPServer": GuardedServer,
    "hypercorn.protocol:H11Protocol": GuardedH11,
    "hypercorn.protocol:H2Protocol": GuardedH2,
    "hypercorn.protocol.h2:StreamBuffer": GuardedBuffer,
}


# The releases whose private names this room uses.
_RELEASES = {"h11": "0.16", "hypercorn": "0.18"}


# Every private function that this room overrides or calls, with its parameters.
_CONNECTION = (
    "self app config context task_group connection_state ssl client server send"
)


_PRIVATE = {
    "hypercorn.trio.tcp_server:TCPServer.__init__": "self app config context state stream",
    "hypercorn.trio.tcp_server:TCPServer.run": "self",
    "hypercorn.trio.tcp_server:TCPServer.protocol_send": "self event",
    "hypercorn.trio.tcp_server:TCPServer._read_data": "self",
    "hypercorn.trio.tcp_server:TCPServer._idle_timeout": "self",
    "hypercorn.trio.tcp_server:TCPServer._initiate_server_close": "self",
    "hypercorn.trio.worker_context:TrioSingleTask.stop": "self",
    "hypercorn.protocol.h11:H11Protocol.__init__": _CONNECTION,
    "hypercorn.protocol.h11:H11Protocol.stream_send": "self event",
    "hypercorn.protocol.h11:H11Protocol._handle_events": "self",
    "hypercorn.protocol.h11:H11Protocol._create_stream": "self request",
    "hypercorn.protocol.h11:H11Protocol._send_error_response": "self status_code",
    "hypercorn.protocol.h11:H11Protocol._send_h11_event": "self event",
    "h11._connection:Connection._get_io_object": "self role event io_dict",
    "h11._readers:ChunkedReader.__call__": "self buf",
    "h11._writers:ChunkedWriter.send_data": "self data write",
    "h11._writers:ContentLengthWriter.send_data": "self data write",
    "h11._receivebuffer:ReceiveBuffer.__bytes__": "self",
    "h11._receivebuffer:ReceiveBuffer.maybe_extract_at_most": "self count",
    "hypercorn.protocol.h2:H2Protocol.__init__": _CONNECTION,
    "hypercorn.protocol.h2:H2Protocol.initiate": "self headers settings",
    "hypercorn.protocol.h2:H2Protocol.handle": "self event",
    "hypercorn.protocol.h2:H2Protocol.stream_send": "self event",
    "hypercorn.protocol.h2:H2Protocol._handle_events": "self events",
    "hypercorn.protocol.h2:H2Protocol._create_stream": "self request",
    "hypercorn.protocol.h2:H2Protocol._send_data": "self stream_id",
    "hypercorn.protocol.h2:H2Protocol._close_stream": "self stream_id",
    "hypercorn.protocol.h2:H2Protocol._flush": "self",
    "hypercorn.protocol.h2:StreamBuffer.pop": "self max_length",
    "hypercorn.protocol.h2:StreamBuffer.push": "self data",
    "hypercorn.protocol.h2:StreamBuffer.close": "self",
}


def _check_names() -> None:
    for package, release in _RELEASES.items():
        installed = version(package)
        if not installed.startswith(f"{release}."):
            raise StartupError(
                f"{package} {release} is needed, but {installed} is installed"
            )
    for place, guarded in _PATCHES.items():
        original = _find(place)
        if not (isinstance(original, type) and issubclass(guarded, original)):
            raise StartupError(f"the installed release has another {place}")
    for place, parameters in _PRIVATE.items():
        if list(signature(_find(place)).parameters) != parameters.split():
            raise StartupError(f"the installed release has another {place}")


def _find(place: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError) as error:
        raise StartupError(f"the installed release has no {place}") from error


def make_config(
    *,
    bind: list[str],
    keep_alive_timeout_seconds: float = 75.0,
    graceful_timeout_seconds: float = 2.0,
) -> hypercorn.config.Config:
    """Make a hypercorn Config that suits token streams.

    Args:
      bind: "HOST:PORT", "unix:PATH" or "fd://N" each.
      keep_alive_timeout_seconds: the time that a connection may be idle after an answer. It
        is longer than usual clients keep one (httpx 5 s, aiohttp 15 s, nginx 60 s): a
        request that meets the server's close is lost. Idle connections give way to new ones.
      graceful_timeout_seconds: the time that requests may still run after the shutdown
        trigger; then they are cancelled.
    """
    config = hypercorn.config.Config()
    config.bind = bind
    # With hypercorn's 100, a burst of clients waits a second for retransmissions.
    config.backlog = 2048
    config.include_server_header = False
    # Loading a model takes longer than hypercorn's minute.
    config.startup_timeout = 1800.0
    config.keep_alive_timeout = keep_alive_timeout_seconds
    config.graceful_timeout = graceful_timeout_seconds
    # Signed URLs, cookies and traces are long, and this is little memory.
    config.h11_max_incomplete_size = 64 * 1024
    # hypercorn's default logger writes to stderr, whatever logging the host program has
    # configured.
    config.errorlog = logging.getLogger("hypercorn.error")
    return config
