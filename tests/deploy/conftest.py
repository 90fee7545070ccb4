"""A real nginx with the file of deploy/, and the files that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
import os
from pathlib import Path
import random
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

# It ends a test that hangs.
START_SECONDS = 60

NOBODY = 65534


@dataclass(frozen=True, kw_only=True)
class Nginx:
    """A running nginx.

    Attributes:
      url: where it speaks TLS.
      plain_url: where it sends clients to `url`.
      tls: trusts its certificate.
    """

    url: str
    plain_url: str
    tls: ssl.SSLContext
    folder: Path

    def read_access_log(self) -> str:
        return (self.folder / "access.log").read_text()


OpenNginx = Callable[[Sequence[int]], AbstractContextManager[Nginx]]


def _choose_port() -> int:
    """Return a free port that the kernel does not give to others by itself.

    A replica that is restarted needs its port for a second time.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@pytest.fixture(scope="session")
def choose_port() -> Callable[[], int]:
    return _choose_port


def adapt(text: str, changes: dict[str, str]) -> str:
    """Replace the texts that differ on this machine; each must occur."""
    for old, new in changes.items():
        assert old in text, f"{old} is not in the file any more"
        text = text.replace(old, new)
    return text


@pytest.fixture
def open_nginx(certificate: Path) -> OpenNginx:
    """Return a function that starts nginx in front of two ports; it may be one twice."""
    # Debian has it where only root looks.
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"))
    program = shutil.which("nginx", path=path)
    if program is None:
        pytest.skip("needs nginx (Debian: nginx-light)")

    @contextmanager
    def open_it(ports: Sequence[int]) -> Iterator[Nginx]:
        with tempfile.TemporaryDirectory(prefix="nginx-") as name:
            folder = Path(name)
            listen, plain = _choose_port(), _choose_port()
            _write_files(folder, certificate, listen, plain, ports)
            with _run_nginx(program, folder, listen):
                yield Nginx(
                    url=f"https://127.0.0.1:{listen}",
                    plain_url=f"http://127.0.0.1:{plain}",
                    tls=ssl.create_default_context(
                        cafile=str(certificate / "fullchain.pem")
                    ),
                    folder=folder,
                )

    return open_it


def _write_files(
    folder: Path, certificate: Path, listen: int, plain: int, ports: Sequence[int]
) -> None:
    first, second = ports
    changes = {
        # Before the others, which put folders below /tmp into the file.
        " /tmp/": f" {folder}/",
        "trioserve-1:8000": f"127.0.0.1:{first}",
        "trioserve-2:8000": f"127.0.0.1:{second}",
        "listen 8080": f"listen 127.0.0.1:{plain}",
        "listen 8443": f"listen 127.0.0.1:{listen}",
        "/etc/nginx/tls/": f"{folder}/",
        "/dev/stdout": f"{folder}/access.log",
        "/dev/stderr": f"{folder}/error.log",
        # All tests share two cores.
        "worker_processes auto": "worker_processes 1",
    }
    text = (DEPLOY / "nginx.conf").read_text()
    (folder / "nginx.conf").write_text(adapt(text, changes))
    for each in certificate.iterdir():
        shutil.copy(each, folder)
    if os.geteuid() == 0:
        for each in (folder, *folder.iterdir()):
            os.chown(each, NOBODY, NOBODY)


@contextmanager
def _run_nginx(program: str, folder: Path, port: int) -> Iterator[None]:
    """Run nginx as a user without rights."""
    config = ["-c", folder / "nginx.conf", "-p", folder, "-e", folder / "error.log"]
    command = [program, *config, "-g", "daemon off;"]
    is_root = os.geteuid() == 0
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if is_root else {}
    with subprocess.Popen(command, **user) as process:  # type: ignore[call-overload]
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _is_open(port):
                log = folder / "error.log"
                assert process.poll() is None, log.read_text() if log.exists() else ""
                assert time.monotonic() < deadline, "nginx does not start"
                time.sleep(0.02)
            yield
        finally:
            process.terminate()


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
