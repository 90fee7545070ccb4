"""The address of `trioserve serve`, taken before the model is loaded."""

from __future__ import annotations

import errno
import socket

from ..config import BindConfig
from ..errors import InvalidConfig


def bind_address(config: BindConfig) -> socket.socket:
    """Take the port, without listening yet.

    A port that is taken is reported at once instead of after the load. Until the model is
    loaded clients are refused: they would hang if the socket listened.

    Raises:
      InvalidConfig: the address cannot be taken.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit this option: a token must not wait for the next one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((config.host, config.port))
    # Python raises TypeError for a name that it cannot encode for a resolver.
    except (OSError, TypeError) as error:
        sock.close()
        raise _explain(config, error) from error
    return sock


def _explain(config: BindConfig, error: OSError | TypeError) -> InvalidConfig:
    """Name the flag to mend: --host if no port of that host can be taken."""
    if isinstance(error, TypeError):
        reason = "it is not the name of a host"
        return InvalidConfig("host", f"cannot listen on {config.host}: {reason}")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        reason = f"cannot listen on {config.host}: {error.strerror}"
        return InvalidConfig("host", reason)
    address = f"{config.host}:{config.port}"
    return InvalidConfig("port", f"cannot take {address}: {error.strerror}")
