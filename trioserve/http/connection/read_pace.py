"""Lets the kernel gather the bytes of a peer that sends them one by one."""

from __future__ import annotations

from typing import Final

import trio

# A read takes 0.1 to 0.3 ms of the event loop, however little it brings. So many bytes that
# pass, in either direction, pay for one. The least that HTTP needs for a request and its
# answer is a little more: a health check over HTTP/2, whose fields are all in the table. A
# WINDOW_UPDATE has 13 bytes, but comes after the 32 KiB that its peer has read.
BYTES_PER_READ: Final = 64

# Reads that nothing pays for. A client that opens a connection has a few of them, whatever its
# protocol. A stranger who connects again has as many each time; together they take about as
# long as two small requests.
FREE_READS: Final = 64

# Then at most 50 reads a second, about one percent of the event loop. No client notices.
WAIT_SECONDS: Final = 0.02


_MOST_OWED: Final = FREE_READS * BYTES_PER_READ


class ReadPace:
    """Delays the reads of one connection while they bring too little."""

    def __init__(self) -> None:
        self._num_owed = 0

    def count_read(self, num_bytes: int) -> None:
        self._num_owed = min(self._num_owed + BYTES_PER_READ, _MOST_OWED)
        self._pay(num_bytes)

    def count_written(self, num_bytes: int) -> None:
        self._pay(num_bytes)

    def _pay(self, num_bytes: int) -> None:
        self._num_owed = max(0, self._num_owed - num_bytes)

    async def wait(self) -> None:
        """Wait before the next read if it is not free."""
        if self._num_owed > _MOST_OWED - BYTES_PER_READ:
            await trio.sleep(WAIT_SECONDS)
