"""Hostile inputs for a port that speaks plain HTTP, one packet each.

The first six of each protocol's list ended the whole process of hypercorn 0.18, or in
a 500. The others are hostile, too, and no server may fail because of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GET = [
    (":method", "GET"),
    (":path", "/health"),
    (":scheme", "http"),
    (":authority", "h"),
]
POST = [
    (":method", "POST"),
    (":path", "/echo"),
    (":scheme", "http"),
    (":authority", "h"),
]
CONTENT_LENGTH_5 = [*POST, ("content-length", "5")]

UPGRADE_H2C = (
    b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: %s\r\n\r\n"
)
UPGRADE_WEBSOCKET = (
    b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def with_fields(*fields: tuple[str | bytes, str | bytes]) -> list[tuple[bytes, bytes]]:
    """Replace GET's fields of the same names and add the others."""
    replaced = dict(GET) | dict(fields)
    return [(_encode(name), _encode(value)) for name, value in replaced.items()]


def without_field(name: str) -> list[tuple[str, str]]:
    return [field for field in GET if field[0] != name]


def http2(*frames: Frame) -> bytes:
    """Serialise a client's connection that begins with `frames`."""
    return PREFACE + b"".join(
        frame.serialize() for frame in (SettingsFrame(0), *frames)
    )


def headers(
    stream_id: int, fields: Iterable[tuple[str, str]] = GET, *flags: str
) -> HeadersFrame:
    block = Encoder().encode(fields, huffman=False)
    return HeadersFrame(stream_id, block, flags=["END_HEADERS", *flags])


def request(stream_id: int, fields: Iterable[tuple[str, str]] = GET) -> HeadersFrame:
    return headers(stream_id, fields, "END_STREAM")


def _encode(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


HTTP1 = {
    "websocket upgrade and one byte": UPGRADE_WEBSOCKET + b"x",
    "websocket upgrade and a frame": UPGRADE_WEBSOCKET
    + b"\x81\x85aaaa\x00\x00\x00\x00\x00",
    "h2c upgrade, settings of odd length": UPGRADE_H2C % b"AAMAAABkAA",
    "h2c upgrade, invalid setting": UPGRADE_H2C % b"AAIAAAAC",
    "target without a path": b"GET ? HTTP/1.1\r\nHost: h\r\n\r\n",
    "target is an IPv6 bracket": b"GET http://[ HTTP/1.1\r\nHost: h\r\n\r\n",
    "h2c upgrade, settings not base64": UPGRADE_H2C % b"!!!",
    "h2c upgrade, no settings": UPGRADE_H2C.replace(b"HTTP2-Settings: %s\r\n", b""),
    "h2c upgrade of a CONNECT": UPGRADE_H2C.replace(b"GET", b"CONNECT") % b"AAMAAABk",
    "h2c upgrade": UPGRADE_H2C % b"AAMAAABkAAQAAP__",
    "h2c upgrade and garbage": UPGRADE_H2C % b"AAMAAABkAAQAAP__" + b"\xff" * 99,
    "websocket upgrade": UPGRADE_WEBSOCKET,
    "websocket upgrade without a key": UPGRADE_WEBSOCKET.replace(b"-Key", b"-Kex"),
    "garbage": bytes(range(256)) * 4,
    "only line ends": b"\r\n" * 100,
    "TLS client hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(509),
    "transfer-encoding and content-length": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
    ),
    "transfer-encoding in HTTP/1.0": (
        b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two transfer-encodings": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
        b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"
    ),
    "two content-lengths": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab"
    ),
    "negative content-length": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"
    ),
    "content-length of 30 digits": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n"
    ),
    "more than the content-length": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nabcdef"
    ),
    "less than the content-length": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"
    ),
    "chunk of no size": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    ),
    "chunk of a huge size": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"f" * 30
        + b"\r\n"
    ),
    "chunk of a negative size": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
    ),
    "chunk without its line end": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabcXX0\r\n\r\n"
    ),
    "chunked with trailers": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\nContent-Length: 9\r\nX: y\r\n\r\n"
    ),
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "host of a url": b"GET /health HTTP/1.1\r\nHost: h/?#@x\r\n\r\n",
    "absolute form": b"GET http://h/health HTTP/1.1\r\nHost: h\r\n\r\n",
    "absolute form without a path": b"GET http://h?x HTTP/1.1\r\nHost: h\r\n\r\n",
    "authority form": b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "connect to a path": b"CONNECT /health HTTP/1.1\r\nHost: h\r\n\r\nxyz",
    "options of all": b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    "get of all": b"GET * HTTP/1.1\r\nHost: h\r\n\r\n",
    "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/9.9": b"GET /health HTTP/9.9\r\nHost: h\r\n\r\n",
    "version is not a number": b"GET /health HTTP/x.y\r\nHost: h\r\n\r\n",
    "expect and no body": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
        b"Expect: 100-continue\r\n\r\n"
    ),
    "expect and the body at once": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
        b"Expect: 100-continue\r\n\r\nabc"
    ),
    "expect something else": b"GET /health HTTP/1.1\r\nHost: h\r\nExpect: fish\r\n\r\n",
    "NUL in the path": b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n",
    "escaped NUL in the path": b"GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n",
    "path is not UTF-8": b"GET /%ff%fe HTTP/1.1\r\nHost: h\r\n\r\n",
    "high bytes in the path": b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
    "path up the tree": b"GET /../../%2e%2e/etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n",
    "two slashes": b"GET //health HTTP/1.1\r\nHost: h\r\n\r\n",
    "path of 60 kB": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "header of 200 kB": b"GET /health HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 200_000,
    "20,000 headers": b"GET /health HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 20_000,
    "header without a colon": b"GET /health HTTP/1.1\r\nHost: h\r\nfish\r\n\r\n",
    "header with a space before the colon": b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
    "header name of high bytes": b"GET / HTTP/1.1\r\nHost: h\r\n\xff: y\r\n\r\n",
    "header folded": b"GET /health HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
    "line ends in the target": b"GET /a%0d%0aX:%20y HTTP/1.1\r\nHost: h\r\n\r\n",
    "lone CR in a header": b"GET /health HTTP/1.1\r\nHost: h\r\nX: a\rY: b\r\n\r\n",
    "lone LF as the line end": b"GET /health HTTP/1.1\nHost: h\n\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n",
    "method in lower case": b"get /health HTTP/1.1\r\nHost: h\r\n\r\n",
    "method of punctuation": b"{} /health HTTP/1.1\r\nHost: h\r\n\r\n",
    "method that nobody knows": b"FISH /health HTTP/1.1\r\nHost: h\r\n\r\n",
    "cookie of nonsense": b"GET /health HTTP/1.1\r\nHost: h\r\nCookie: =;;=,\r\n\r\n",
    "content-type of nonsense": (
        b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: ;=/\xff\r\n"
        b"Content-Length: 1\r\n\r\na"
    ),
    "request cut in a header": b"GET /health HTTP/1.1\r\nHos",
    "pipelined twice": b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" * 2,
    "pipelined and garbage": b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n\x00\xff",
    "pipelined and 200 kB": b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" + b"a" * 200_000,
}

HTTP2 = {
    "data after the answer": http2(headers(1), *[DataFrame(1, b"x")] * 50),
    "path with a high byte": http2(request(1, with_fields((":path", b"/\xff")))),
    "method with a high byte": http2(request(1, with_fields((":method", b"G\xff")))),
    "connect without a path": http2(
        request(1, [(":method", "CONNECT"), (":authority", "h")])
    ),
    "1,500 priorities": http2(
        *[PriorityFrame(2 * i + 1, stream_weight=1) for i in range(1500)]
    ),
    "path without a slash": http2(request(1, with_fields((":path", "?")))),
    "a websocket's connect": http2(
        headers(1, with_fields((":method", "CONNECT"), (":protocol", "websocket")))
    ),
    "content-length and no body": http2(request(1, CONTENT_LENGTH_5)),
    "preface alone": http2(),
    "preface without settings": PREFACE,
    "preface and garbage": PREFACE + bytes(range(256)) * 4,
    "half a preface": PREFACE[:20],
    "no path": http2(request(1, without_field(":path"))),
    "no method": http2(request(1, without_field(":method"))),
    "no scheme": http2(request(1, without_field(":scheme"))),
    "empty path": http2(request(1, with_fields((":path", "")))),
    "two paths": http2(request(1, [*GET, (":path", "/")])),
    "unknown pseudo-header": http2(request(1, with_fields((":fish", "y")))),
    "pseudo-header after a header": http2(request(1, [("x", "y"), *GET])),
    "header in upper case": http2(request(1, [*GET, ("X", "y")])),
    "header with a line end": http2(request(1, [*GET, ("x", "a\r\nb")])),
    "connection header": http2(request(1, [*GET, ("connection", "close")])),
    "less than the content-length": http2(
        headers(1, CONTENT_LENGTH_5), DataFrame(1, b"ab", flags=["END_STREAM"])
    ),
    "more than the content-length": http2(
        headers(1, CONTENT_LENGTH_5), DataFrame(1, b"abcdefgh", flags=["END_STREAM"])
    ),
    "data before headers": http2(DataFrame(1, b"x")),
    "data on stream 0": http2() + b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x",
    "headers on an even stream": http2(request(2)),
    "headers on an old stream": http2(request(3), request(1)),
    "headers twice": http2(headers(1, POST), headers(1, POST)),
    "headers that cannot be unpacked": http2(
        HeadersFrame(1, b"\xff\xff\xff\xff\x0f", flags=["END_HEADERS"])
    ),
    "headers never finished": http2(HeadersFrame(1, b"\x82", flags=[])),
    "a flood of continuations": http2(
        HeadersFrame(1, b"", flags=[]),
        *[ContinuationFrame(1, b"\x00\x01x\x01y")] * 2000,
    ),
    "a bomb of headers": http2(
        HeadersFrame(
            1,
            b"\x40\x01x\x7f\x81\x1e" + b"a" * 3968 + b"\xbe" * 9000,
            flags=["END_HEADERS", "END_STREAM"],
        )
    ),
    "trailers": http2(headers(1, POST), headers(1, [("x", "y")], "END_STREAM")),
    "trailers and no end": http2(headers(1, POST), headers(1, [("x", "y")])),
    "priority that depends on itself": http2(PriorityFrame(1, depends_on=1)),
    "priority in the headers": http2(
        HeadersFrame(
            1,
            Encoder().encode(GET),
            flags=["END_HEADERS", "END_STREAM", "PRIORITY"],
            depends_on=77,
            stream_weight=3,
            exclusive=True,
        )
    ),
    "200 streams at once": http2(*[headers(2 * i + 1, POST) for i in range(200)]),
    "rapid reset": http2(
        *[
            frame
            for i in range(400)
            for frame in (request(2 * i + 1), RstStreamFrame(2 * i + 1, error_code=8))
        ]
    ),
    "reset of an idle stream": http2(RstStreamFrame(1, error_code=8)),
    "zero window and reset": http2(
        SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}),
        request(1, with_fields((":path", "/events"))),
        RstStreamFrame(1, error_code=8),
    ),
    "zero window": http2(
        SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}),
        request(1, with_fields((":path", "/events"))),
    ),
    "window overflow": http2(*[WindowUpdateFrame(0, window_increment=2**31 - 1)] * 2),
    "window of a stream overflows": http2(
        headers(1, POST), *[WindowUpdateFrame(1, window_increment=2**31 - 1)] * 2
    ),
    "window increment of zero": http2() + bytes.fromhex("00000408000000000000000000"),
    "invalid setting": http2(SettingsFrame(0, settings={SettingsFrame.ENABLE_PUSH: 7})),
    "settings of odd length": http2() + bytes.fromhex("0000050400000000000000000000"),
    "settings flood": http2(*[SettingsFrame(0)] * 1000),
    "ping flood": http2(*[PingFrame(0, b"12345678")] * 1000),
    "frame longer than allowed": http2() + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "frame of an unknown type": http2() + b"\x00\x00\x01\x63\x00\x00\x00\x00\x01x",
    "push promise from a client": http2(
        PushPromiseFrame(1, promised_stream_id=2, flags=["END_HEADERS"])
    ),
    "goaway": http2(request(1), GoAwayFrame(0, last_stream_id=0)),
    "goaway and a request": http2(GoAwayFrame(0, last_stream_id=0), request(1)),
    "frames after the last answer": http2(request(1), request(1), request(3)),
}

INPUTS = {f"HTTP/1: {name}": packet for name, packet in HTTP1.items()} | {
    f"HTTP/2: {name}": packet for name, packet in HTTP2.items()
}
