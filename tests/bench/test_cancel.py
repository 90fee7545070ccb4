"""The bench of cancels reads the server's log, and lays out its times."""

from __future__ import annotations

import logging

from cancel import Log
import pytest
import trio

from trioserve.http.record.request_counts import Cancellation, RequestCounts


async def test_it_reads_the_line_of_a_cancel(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve.http.record.request_counts")
    cancellation = Cancellation("one", RequestCounts(), lambda call: call())
    cancellation.begin("decode")
    await trio.sleep(0.25)
    cancellation.end()
    log = Log()
    log.read(f"DEBUG {caplog.messages[0]}".encode())
    log.read(b"another line")
    assert log.freed == {"one": (pytest.approx(0.25), "decode")}
