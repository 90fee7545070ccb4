"""The address of a server is taken before its model is loaded, and left behind it."""

from __future__ import annotations

import os
from pathlib import Path
import socket
import stat

import pytest

from trioserve.config import BindConfig
from trioserve.errors import InvalidConfig
from trioserve.startup.address import (
    open_address,
    open_copy,
    share_address,
    start_listening,
)
from trioserve.startup.http_server import TlsContext


def test_a_path_is_free_again_behind_the_block(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):
        with open_address(BindConfig(uds=str(path))) as sock:
            assert path.is_socket()
            sock.listen()
        assert not path.exists()


def test_who_reaches_the_folder_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    # The umask of the unit for systemd.
    before = os.umask(0o077)
    try:
        with open_address(BindConfig(uds=str(path))):
            # The kernel wants the right to write from clients that connect.
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with open_address(BindConfig(uds=str(path))) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_path_that_is_in_use_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    file = tmp_path / "file"
    file.write_text("text")
    with open_address(BindConfig(uds=str(path))) as sock:
        sock.listen()
        for taken in (path, file):
            with pytest.raises(InvalidConfig, match="--uds: cannot listen on .*in use"):
                with open_address(BindConfig(uds=str(taken))):
                    raise AssertionError("it is taken")
        assert path.is_socket()
    assert file.read_text() == "text"


def test_a_path_is_taken_before_anybody_listens(tmp_path: Path) -> None:
    """Two servers that load their models at the same time."""
    config = BindConfig(uds=str(tmp_path / "socket"))
    with open_address(config) as sock:
        with pytest.raises(InvalidConfig, match="in use"):
            with open_address(config):
                raise AssertionError("it is taken")
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(config.uds or "")


def test_a_port_is_taken_before_anybody_listens() -> None:
    """Two servers that load their models at the same time."""
    with open_address(BindConfig(port=0)) as sock:
        free = sock.getsockname()[1]
    config = BindConfig(port=free)
    for _ in range(2):
        with open_address(config):
            with pytest.raises(InvalidConfig, match="--port: .*in use; stop"):
                with open_address(config):
                    raise AssertionError("it is taken")


def test_a_port_that_another_program_takes_meanwhile_is_refused() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        config = BindConfig(port=other.getsockname()[1])
        # The kernel allows it, because nobody listens.
        with open_address(config) as sock:
            other.listen()
            with pytest.raises(InvalidConfig, match="--port: .*in use; stop"):
                start_listening(sock, config, backlog=1)


@pytest.mark.parametrize(
    ("path", "reason"), [("x" * 200, "too long"), ("/none/socket", "No such file")]
)
def test_a_path_that_cannot_be_is_refused(path: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        with open_address(BindConfig(uds=path)):
            raise AssertionError("it cannot be")


def test_a_path_is_taken_in_place_of_a_port() -> None:
    with pytest.raises(InvalidConfig, match="--uds: .*in place of --host and --port"):
        BindConfig(uds="socket", port=80)


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--tls-certfile: needs --tls-keyfile"):
        BindConfig(tls_certfile="x")
    path = tmp_path / "file"
    config = BindConfig(tls_certfile=str(path), tls_keyfile=str(path))
    with pytest.raises(
        InvalidConfig, match="cannot read it, or --tls-keyfile: No such"
    ):
        TlsContext(config)
    path.write_text("nothing")
    with pytest.raises(InvalidConfig, match="cannot use it with --tls-keyfile"):
        TlsContext(config)


def test_copies_of_a_port_listen_until_each_is_closed() -> None:
    with open_address(BindConfig(port=0)) as sock:
        share_address(sock)
        address = sock.getsockname()
        with open_copy(sock) as first:
            first.listen()
            # A server that does not share the port cannot take it.
            with pytest.raises(InvalidConfig, match="--port"):
                with open_address(BindConfig(port=address[1])):
                    pass
            with open_copy(sock) as second:
                second.listen()
                assert first.getsockname() == second.getsockname() == address
            # All connections come to the one that is left.
            clients = [socket.create_connection(address) for _ in range(8)]
            for client in clients:
                first.accept()[0].close()
                client.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)


def test_copies_of_a_unix_socket_are_the_same_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with open_address(BindConfig(uds=path)) as sock:
        share_address(sock)
        with open_copy(sock) as first, open_copy(sock) as second:
            first.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                first.close()
                second.accept()[0].close()
