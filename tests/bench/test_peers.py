"""bench/peers.py starts the servers that are installed, and tells why others are absent."""

from __future__ import annotations

from pathlib import Path
import sys

from kit.peers import PORT, Peer, PeerAbsent, list_peers, open_peer
import peers
import pytest
import trio

from trioserve.programs.bench.generation.load import Load

# A server whose worker would outlive it.
SERVER = """\
import http.server, subprocess, sys
print(subprocess.Popen(["sleep", "1000"]).pid, file=open(sys.argv[2], "w"))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_running(pid: int) -> bool:
    # A process that nobody waits for stays as a zombie.
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_server_ends_with_its_workers(tmp_path: Path) -> None:
    worker = tmp_path / "worker"
    peer = Peer(label="x", command=(sys.executable, "-c", SERVER, PORT, str(worker)))
    with trio.fail_after(60):
        async with open_peer(peer) as running:
            assert 0 < running.start_seconds < 60
            pid = int(worker.read_text())
            assert is_running(running.pid) and is_running(pid)
        assert not is_running(running.pid)
        # Nobody waits for the worker, and the kernel takes a moment to end it.
        while is_running(pid):
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ValueError('no AVX-512')", "ValueError: no AVX-512"),
        ("print('bye')", "bye"),
        ("", "it wrote nothing"),
    ],
)
async def test_a_server_that_does_not_start_is_absent(script: str, reason: str) -> None:
    peer = Peer(label="x", command=(sys.executable, "-c", script))
    report = await peers.measure(Load(), [peer], "float32")
    assert report.absent == {"x": reason}
    assert f"| - | x | absent: {reason} |" in peers.render(report)


async def test_a_server_that_is_not_installed_is_absent(tmp_path: Path) -> None:
    folders = (tmp_path, None, tmp_path)
    for peer in list_peers(*folders, dtype="float32", num_requests=1, num_tokens=1):
        if peer.needs:
            with pytest.raises(PeerAbsent, match="there is no"):
                async with open_peer(peer):
                    pass
