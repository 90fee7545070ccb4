"""How much time of the event loop does a megabyte from a stranger cost?

Question
  A server without a key takes bytes from anybody. For each form that a stranger can give
  them (tiny chunks, many fields, percent signs, short frames, JSON of empty lists), how long
  is the thread of the event loop busy for each megabyte? The target is 20 ms.

      python bench/hostile_bytes.py
      python bench/hostile_bytes.py --only chunks

Machine
  Any. A server with a fake device runs in a process of its own on this machine. Its time is
  read from /proc, so the bench is for Linux, and other load changes little.

How to read the answer
  once ms      processor time of the server's main thread for one connection with this form,
               until it is closed.
  loop ms/MB   the same for each megabyte that the client could write, less the time of a
               connection with one small request (the first rows).
  all ms/MB    of all threads: long bodies are decoded by workers.
  MB           what the client could write before the server closed.
  status       of the answer; - means that the connection was closed without one.

  A form that is refused after a few kilobytes costs little once. Its peer can connect again,
  but so can one that sends plain requests; the first rows show what those cost. Rates of
  connections are for a proxy or a firewall.

Caveats
  The client writes as fast as it can, so reads are large. In the rows with packets of one
  byte, it waits between them. The first 64 cost one read each, and then there are 50 reads a
  second; the row counts 66 bytes for the headers of each packet, which a network carries, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
import re
import socket
import subprocess
import sys
import tempfile
import time

import h2.config
import h2.connection
import trio

from trioserve.config import HttpConfig
from trioserve.testing.server import open_fake_server
from trioserve.testing.tokenizer import tiny_tokenizer

MEGABYTE = 2**20
PATH = b"/v1/chat/completions"
TARGET_MS = 20.0

PACKET_BYTES = 66


@dataclass(frozen=True, kw_only=True)
class Case:
    """A form of bytes.

    Attributes:
      data: sent on one connection.
      rounds: the number of connections, one after the other.
      packet: bytes in one write; 0 writes all at once.
      base: the small request whose time is taken off.
    """

    data: bytes
    rounds: int = 8
    packet: int = 0
    base: str = "POST"


@dataclass(kw_only=True)
class Server:
    """The process that is measured."""

    process: subprocess.Popen[bytes]
    port: int = field(default=0)

    def measure(self) -> tuple[float, float]:
        """Return the processor time of the main thread and of all, in seconds."""
        pid = self.process.pid
        tasks = Path(f"/proc/{pid}/task")
        times = {t.name: _read_seconds(t / "schedstat") for t in tasks.iterdir()}
        return times[str(pid)], sum(times.values())


def _read_seconds(path: Path) -> float:
    return int(path.read_text().split()[0]) / 1e9


def repeat(pattern: bytes, num_bytes: int = MEGABYTE) -> bytes:
    return pattern * (num_bytes // len(pattern))


def post(body: bytes, *fields: bytes, path: bytes = PATH) -> bytes:
    """Return a request that closes its connection."""
    lines = [
        b"POST %b HTTP/1.1" % path,
        b"Host: bench",
        b"Content-Type: application/json",
        b"Connection: close",
        b"Content-Length: %d" % len(body),
        *fields,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes) -> bytes:
    head = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return head + body


def get(path: bytes, *fields: bytes, last: bytes = b"Connection: close") -> bytes:
    lines = [b"GET %b HTTP/1.1" % path, b"Host: bench", *fields, last]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(size: int) -> bytes:
    return b"%x\r\n%b\r\n" % (size, b" " * size)


def in_json(pattern: bytes, num_bytes: int = MEGABYTE, name: bytes = b"x") -> bytes:
    """Return a chat with a list in one field."""
    return b'{"%b":[%b0],"messages":[]}' % (name, repeat(pattern, num_bytes))


def message(content: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":%b}]}' % content


HEAD_BYTES = 60_000


def list_bases() -> Iterator[tuple[str, Case]]:
    yield "GET", Case(data=get(b"/livez"), rounds=100)
    yield "POST", Case(data=post(b"{}"), rounds=100)
    yield "POST over HTTP/2", Case(data=http2(size=2, num_bytes=2), rounds=30)


def list_cases() -> Iterator[tuple[str, Case]]:
    yield "head: fields of 3 bytes", Case(
        data=get(b"/livez", *[b"a:"] * (HEAD_BYTES // 4)), rounds=20, base="GET"
    )
    yield "head: one long field", Case(
        data=get(b"/livez", b"a: " + b"x" * HEAD_BYTES), rounds=20, base="GET"
    )
    yield "head: folded lines", Case(
        data=get(b"/livez", b"a: b", *[b" "] * (HEAD_BYTES // 3)), rounds=20, base="GET"
    )
    yield "head: empty lines before it", Case(data=repeat(b"\r\n"))
    yield "head: content type", Case(
        data=post(b"{}", b"Content-Type: a" + repeat(b";a=b", HEAD_BYTES)),
        rounds=20,
        base="GET",
    )
    for name, text in (("percent", b"%41"), ("slashes", b"/"), ("dots", b"../")):
        path = b"/" + repeat(text, HEAD_BYTES)
        yield f"path: {name}", Case(data=get(path), rounds=20, base="GET")
    yield "path: query", Case(
        data=get(b"/v1/models?" + repeat(b"a&", HEAD_BYTES)), rounds=20, base="GET"
    )
    yield "path: percent in the query", Case(
        data=get(b"/v1/requests?" + repeat(b"%41=%41&", HEAD_BYTES)),
        rounds=20,
        base="GET",
    )
    yield "packets of 1 byte: head", Case(
        data=get(b"/livez", b"a: " + b"x" * 2000), rounds=1, packet=1, base="GET"
    )
    yield "packets of 1 byte: body", Case(data=post(b" " * 2000), rounds=1, packet=1)
    for size in (1, 16, 64, 128, 1024, 16_384):
        yield f"chunks of {size}", Case(
            data=chunked(repeat(chunk(size)) + b"0\r\n\r\n")
        )
    yield "chunks: extensions", Case(
        data=chunked(repeat(b"80;" + b"x" * 100 + b"\r\n" + b" " * 128 + b"\r\n"))
    )
    yield "chunks: trailers", Case(
        data=chunked(chunk(1) + b"0\r\n" + repeat(b"a:\r\n", HEAD_BYTES) + b"\r\n"),
        rounds=20,
    )
    yield "body: zeros", Case(data=post(b" " * MEGABYTE))
    yield "body: multipart", Case(
        data=post(repeat(b"--x\r\n\r\n\r\n")).replace(
            b"application/json", b"multipart/form-data; boundary=x"
        )
    )
    yield "body: form", Case(
        data=post(repeat(b"a=b&")).replace(
            b"application/json", b"application/x-www-form-urlencoded"
        )
    )
    bodies = {
        "numbers": in_json(b"0,"),
        "lists": in_json(b"[],"),
        "objects": in_json(b"{},"),
        "fields": b'{%b"messages":[]}' % repeat(b'"n":1,'),
        "depth": in_json(b"["),
        "text": message(b'"%b"' % repeat(b"hello you, ")),
        "escapes": message(b'"%b"' % repeat(b"\\n")),
        "parts": message(b"[%b]" % repeat(b'{"type":"text","text":""},').rstrip(b",")),
        "bias": b'{"logit_bias":{%b"1":1},"messages":[]}' % repeat(b'"1":1,'),
        "stop ids": in_json(b"1,", name=b"stop_token_ids"),
        "messages": b'{"messages":[%b{}]}' % repeat(b'{"role":"user","content":""},'),
    }
    for name, body in bodies.items():
        yield f"JSON of 1 MB: {name}", Case(data=post(body))
    small = {
        "lists": in_json(b"[],", 60_000),
        "fields": b'{%b"messages":[]}' % repeat(b'"n":1,', 60_000),
        "parts": message(
            b"[%b]" % repeat(b'{"type":"text","text":""},', 60_000).rstrip(b",")
        ),
        "bias": b'{"logit_bias":{%b"1":1},"messages":[]}' % repeat(b'"1":1,', 60_000),
    }
    for name, body in small.items():
        yield f"JSON of 60 kB: {name}", Case(data=post(body), rounds=20)
    yield "HTTP/2: DATA of 1 byte", Case(data=http2(size=1), base="POST over HTTP/2")
    yield "HTTP/2: DATA of 1 byte, padded", Case(
        data=http2(size=1, padding=255), base="POST over HTTP/2"
    )
    yield "HTTP/2: DATA of 1024", Case(data=http2(size=1024), base="POST over HTTP/2")
    yield "HTTP/2: DATA of 16384", Case(
        data=http2(size=16_384), base="POST over HTTP/2"
    )
    yield "HTTP/2: PING", Case(
        data=http2_frames(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)), base="POST over HTTP/2"
    )


def http2_frames(frame: bytes) -> bytes:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    return client.data_to_send() + repeat(frame)


def http2(
    *, size: int, padding: int | None = None, num_bytes: int = HEAD_BYTES
) -> bytes:
    """Return a request over HTTP/2 whose body comes in DATA frames of a size.

    The windows of the server are open for so much without an update.
    """
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    fields = {
        ":method": "POST",
        ":path": PATH.decode(),
        ":scheme": "http",
        ":authority": "bench",
        "content-type": "application/json",
    }
    client.send_headers(1, list(fields.items()))
    data = client.data_to_send()
    taken = size if padding is None else size + padding + 1
    for _ in range(num_bytes // taken):
        client.send_data(1, b" " * size, pad_length=padding)
    client.end_stream(1)
    return data + client.data_to_send()


def send(port: int, case: Case) -> tuple[int, str]:
    """Send a case on one connection; returns the bytes taken, and the status."""
    with closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.settimeout(5)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        num_sent = 0
        step = case.packet or 2**16
        with suppress(OSError):
            while num_sent < len(case.data):
                num_sent += client.send(case.data[num_sent : num_sent + step])
                if case.packet:
                    time.sleep(0.0005)
        received = b""
        with suppress(OSError):
            if b"Connection: close" not in case.data[: HEAD_BYTES * 2]:
                client.settimeout(1)
            while len(received) < 2**16 and (data := client.recv(2**16)):
                received += data
    found = re.match(rb"HTTP/1.1 (\d+)", received)
    if case.packet:
        num_sent *= PACKET_BYTES + 1
    return num_sent, found[1].decode() if found else "-"


def measure(server: Server, case: Case) -> tuple[float, float, float, str]:
    """Return the ms of the loop and of all threads, the megabytes, and the status."""
    send(server.port, case)
    before = server.measure()
    num_taken = 0
    for _ in range(case.rounds):
        num_bytes, status = send(server.port, case)
        num_taken += num_bytes
    # Workers and closed connections end their work.
    time.sleep(0.3)
    now = server.measure()
    loop, all_ = (1000 * (b - a) / case.rounds for a, b in zip(before, now))
    return loop, all_, num_taken / case.rounds / MEGABYTE, status


def report(
    name: str, figures: tuple[float, float, float, str], base: tuple[float, ...]
) -> None:
    loop, all_, megabytes, status = figures
    above = (loop - base[0]) / megabytes
    is_over = "  over the target" if above > TARGET_MS else ""
    print(
        f"{name:32} {loop:8.2f} {above:10.1f} {(all_ - base[1]) / megabytes:9.1f} "
        f"{megabytes:7.3f} {status:>6}{is_over}",
        flush=True,
    )


async def serve() -> None:
    """Serve until stdin ends; the port is the first line of stdout."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tiny_tokenizer(Path(folder))
        async with open_fake_server(
            tokenizer, http=HttpConfig(enable_h2c=True)
        ) as server:
            print(server.port, flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of the rows")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve)
        return
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None, "stdout is a pipe"
        server = Server(process=child, port=int(child.stdout.readline()))
        print(f"{'':32}  once ms loop ms/MB all ms/MB      MB status")
        bases: dict[str, tuple[float, ...]] = {}
        for kind, case in list_bases():
            figures = measure(server, case)
            bases[kind] = figures[:2]
            print(f"{'one small ' + kind:32} {figures[0]:8.2f} {figures[3]:>35}")
        for name, case in list_cases():
            if options.only in name:
                report(name, measure(server, case), bases[case.base])
    finally:
        assert child.stdin is not None, "stdin is a pipe"
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    main()
