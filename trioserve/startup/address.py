"""The address of `trioserve serve`, taken before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
import errno
import hashlib
import os
from pathlib import Path
import socket
import sys

from ..config import BindConfig
from ..errors import InvalidConfig


@contextmanager
def open_address(config: BindConfig) -> Iterator[socket.socket]:
    """Take the address until the block is left, without listening yet.

    An address that is taken is reported at once. Clients are refused until HTTP is imported:
    they would hang if the socket listened.

    Raises:
      InvalidConfig: the address cannot be taken.
    """
    if config.uds is None:
        with _lock_port(config), _bind_port(config) as sock:
            yield sock
        return
    path = Path(config.uds)
    with _lock_path(path), _bind_path(path) as sock:
        ours = path.stat()
        try:
            yield sock
        finally:
            # Another server may have replaced it.
            with suppress(OSError):
                if os.path.samestat(path.stat(), ours):
                    path.unlink()


def start_listening(sock: socket.socket, config: BindConfig, backlog: int) -> None:
    """Let clients connect; from here on they wait in the kernel.

    Raises:
      InvalidConfig: another program has begun to listen since the address was taken.
    """
    try:
        sock.listen(backlog)
    except OSError as error:
        if config.uds is not None:
            raise _explain_path(Path(config.uds), error) from error
        raise _explain(config, error) from error


def _lock_path(path: Path) -> AbstractContextManager[object]:
    """Keep other servers from a path on which nobody listens yet."""
    try:
        return _lock(os.fsencode(path.absolute()))
    except OSError as error:
        raise _explain_path(path, error) from error


def _lock_port(config: BindConfig) -> AbstractContextManager[object]:
    """Keep other servers from a port on which nobody listens yet.

    SO_REUSEADDR lets several sockets have one port, as long as none of them listens.
    """
    if config.port == 0:
        return nullcontext()
    try:
        return _lock(f"{config.host} {config.port}".encode())
    except OSError as error:
        raise _explain(config, error) from error


def _lock(name: bytes) -> AbstractContextManager[object]:
    """Take a name in the kernel, which forgets it with the process.

    Other systems than Linux have no such names, and no lock.
    """
    if sys.platform != "linux":
        return nullcontext()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0trioserve-{hashlib.sha256(name).hexdigest()}")
    except OSError:
        lock.close()
        raise
    return lock


def _bind_path(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            path.unlink()
        sock.bind(str(path))
        # Clients have to write to it. The folder says who they are.
        path.chmod(0o666)
    except OSError as error:
        sock.close()
        raise _explain_path(path, error) from error
    return sock


def _explain_path(path: Path, error: OSError) -> InvalidConfig:
    reason = error.strerror or str(error)
    return InvalidConfig("uds", f"cannot listen on {path}: {reason}")


def _is_abandoned(path: Path) -> bool:
    """Return whether a path is a socket on which nobody listens, left by a killed server."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A server that is stopped may accept nothing.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            return False
    return False


def share_address(sock: socket.socket) -> None:
    """Let open_copy take the address of a socket that does not listen.

    The option is set behind the bind, which would otherwise take the port of another server
    that shares it.
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def open_copy(sock: socket.socket) -> socket.socket:
    """Return another socket with the address of a shared one.

    The system spreads connections over the copies that listen. For a Unix socket it cannot do
    that, so all copies are the same socket.
    """
    if sock.family == socket.AF_UNIX:
        return sock.dup()
    copy = _make_socket(sock.family)
    share_address(copy)
    copy.bind(sock.getsockname())
    return copy


def _make_socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit this option: a token must not wait for the next one.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _bind_port(config: BindConfig) -> socket.socket:
    sock = _make_socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    try:
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
        host, _, port = config.host.removeprefix("http://").rpartition(":")
        # An address of IPv6 has several colons.
        is_pair = port.isdigit() and host and ":" not in host
        hint = f"; write --host {host} --port {port}" if is_pair else ""
        reason = f"cannot listen on {config.host}: {error.strerror}{hint}"
        return InvalidConfig("host", reason)
    address = f"{config.host}:{config.port}"
    return InvalidConfig(
        "port", f"cannot take {address}: {error.strerror}{_advise(error)}"
    )


def _advise(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "; stop the program that has it, or write another --port"
        case errno.EACCES:
            return "; ports below 1024 are for the system, so write another --port"
        case _:
            return ""
