"""Bounds on heads and chunked bodies; h11's reader of these, which joins small chunks."""

from __future__ import annotations

import re
from typing import Final

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer

from .fields import MAX_NUM_FIELDS

# Half a millisecond of work. Then the app gets the joined chunks, and all other tasks can
# run.
MAX_CHUNKS_AT_ONCE: Final = 1024

# RFC 9112, 7.1.1: the extensions of all chunks should be limited in total. The numbers are
# from Go's net/http: a chunk may have 16 bytes of framing and twice its content, and a
# body may have 16 KiB beyond that.
_FREE_FRAMING_BYTES: Final = 16
_MAX_EXCESS_BYTES: Final = 16 * 1024

# After the first of them, chunks must have so many bytes on average. Each chunk takes a
# microsecond or two, so a megabyte of single bytes would take a quarter of a second. The
# numbers have no source: a client that writes its JSON in pieces sends 64 bytes or more, or
# few of them.
_FREE_CHUNKS: Final = 256
_LEAST_AVERAGE: Final = 64

# This matches chunk headers. Longer ones are left to h11. As in h11, the extension may
# contain a lone CR.
_HEADER: Final = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\n]{0,256}?|[ \t]{1,16})?\r\n")


# The line of the request comes first.
MAX_LINES: Final = 1 + MAX_NUM_FIELDS

_END: Final = re.compile(rb"\n\r?\n")


class JoiningReader(ChunkedReader):
    """Makes one event of many chunks.

    To pass an event to the app costs 20 us, and a peer may send a body in chunks of one
    byte. Only whole and well-formed chunks are joined. Everything else is left to h11:
    parts of chunks, the last chunk, and errors. So each body is read exactly as h11 would
    read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._excess_bytes = 0
        self._num_chunks = 0
        self._num_bytes = 0

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if self._bytes_in_chunk == 0 and not self._reading_trailer:
            parts, end = _split_chunks(bytes(buf), self._bytes_to_discard)
            if parts:
                buf.maybe_extract_at_most(end)
                self._bytes_to_discard = b""
                data = b"".join(parts)
                self._count(end, len(data), len(parts))
                return h11.Data(data=data)
        if self._reading_trailer:
            check_lines(buf)
        num_before, is_new = len(buf), self._bytes_in_chunk == 0
        event = super().__call__(buf)
        # The end comes with the trailers, which have the limits of a head.
        if not isinstance(event, h11.EndOfMessage):
            num_content = 0 if event is None else len(event.data)
            # The content of a chunk may come later than its header.
            is_chunk = is_new and (event is not None or self._bytes_in_chunk > 0)
            self._count(num_before - len(buf), num_content, int(is_chunk))
        return event

    def _count(self, num_read: int, num_content: int, num_chunks: int) -> None:
        """Count chunks.

        Raises:
          RemoteProtocolError: they have too little content.
        """
        excess = num_read - 3 * num_content - _FREE_FRAMING_BYTES * max(1, num_chunks)
        self._excess_bytes = max(0, self._excess_bytes + excess)
        if self._excess_bytes > _MAX_EXCESS_BYTES:
            raise h11.RemoteProtocolError("the chunks' extensions are too long")
        self._num_chunks += num_chunks
        self._num_bytes += num_content
        if self._num_bytes < _LEAST_AVERAGE * (self._num_chunks - _FREE_CHUNKS):
            raise h11.RemoteProtocolError(
                f"its chunks are too small: beyond {_FREE_CHUNKS} chunks, they need "
                f"{_LEAST_AVERAGE} bytes on average"
            )


def check_lines(buf: ReceiveBuffer) -> None:
    """Refuse a head, or trailers, of too many lines, whether they are complete or not.

    Raises:
      RemoteProtocolError
    """
    data = bytes(buf)
    # Most requests have few lines in all, and most bodies are not here yet.
    if data.count(b"\n") <= MAX_LINES:
        return
    end = _END.search(data)
    if data.count(b"\n", 0, end.start() + 1 if end else len(data)) > MAX_LINES:
        raise h11.RemoteProtocolError(
            f"it has more than {MAX_NUM_FIELDS} fields", error_status_hint=431
        )


def _split_chunks(wire: bytes, footer: bytes) -> tuple[list[bytes], int]:
    """Find the whole chunks that `wire` begins with.

    Args:
      footer: the missing end of the chunk before them.

    Returns:
      the contents of the chunks, and the place in `wire` behind them.
    """
    parts: list[bytes] = []
    place = len(footer) if wire.startswith(footer) else len(wire)
    while len(parts) < MAX_CHUNKS_AT_ONCE and (header := _HEADER.match(wire, place)):
        begin = header.end()
        end = begin + int(header[1], 16)
        if begin == end or wire[end : end + 2] != b"\r\n":
            break
        parts.append(wire[begin:end])
        place = end + 2
    return parts, place
