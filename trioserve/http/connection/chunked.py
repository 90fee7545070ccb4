"""Chunked bodies: h11's reader, which joins small chunks."""

from __future__ import annotations

import re
from typing import Final

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer

# Half a millisecond of work. Then the app gets the joined chunks, and all other tasks can
# run.
MAX_CHUNKS_AT_ONCE: Final = 1024

# RFC 9112, 7.1.1: the extensions of all chunks should be limited in total. The numbers are
# those of Go's net/http: a chunk may have 16 bytes of framing and twice its content, and a
# body may have 16 KiB beyond that.
_FREE_FRAMING_BYTES: Final = 16
_MAX_EXCESS_BYTES: Final = 16 * 1024

# This matches short chunk headers. Longer ones are left to h11 and count as excess. As in
# h11, the extension may contain a lone CR.
_HEADER: Final = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\n]{0,16}?|[ \t]{1,16})?\r\n")


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

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if self._bytes_in_chunk == 0 and not self._reading_trailer:
            data, end = _join_chunks(bytes(buf), self._bytes_to_discard)
            if data:
                buf.maybe_extract_at_most(end)
                self._bytes_to_discard = b""
                return h11.Data(data=data)
        return self._read_counting(buf)

    def _read_counting(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        num_before = len(buf)
        event = super().__call__(buf)
        if isinstance(event, h11.EndOfMessage):
            # The end comes with the trailers, which have the limit of a head.
            return event
        num_read = num_before - len(buf)
        num_content = 0 if event is None else len(event.data)
        excess = num_read - 3 * num_content - _FREE_FRAMING_BYTES
        self._excess_bytes = max(0, self._excess_bytes + excess)
        if self._excess_bytes > _MAX_EXCESS_BYTES:
            raise h11.RemoteProtocolError("the chunks' extensions are too long")
        return event


def _join_chunks(wire: bytes, footer: bytes) -> tuple[bytes, int]:
    """Join the whole chunks that `wire` begins with.

    Args:
      footer: the missing end of the chunk before them.

    Returns:
      the content of the chunks, and the place in `wire` behind them.
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
    return b"".join(parts), place
