"""The bench of cancels reads the server's log, and lays out its times."""

from __future__ import annotations

import logging

from cancel import Cancel, Log, Report, render
import pytest
import trio

from trioserve.http.record.cancellation import Cancellation
from trioserve.http.record.request_counts import RequestCounts


async def test_it_reads_the_line_of_a_cancel(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    caplog.set_level(logging.DEBUG, "trioserve.http.record.cancellation")
    cancellation = Cancellation("one", RequestCounts(), lambda call: call())
    cancellation.begin("decode")
    await trio.sleep(0.25)
    cancellation.end()
    log = Log()
    log.read(f"DEBUG {caplog.messages[0]}".encode())
    log.read(b"another line")
    assert log.freed == {"one": (pytest.approx(0.25), "decode")}


def test_each_phase_that_was_seen_has_a_row() -> None:
    cancels = [Cancel(phase="decode", freed=0.001 * i, gone=0.01) for i in range(1, 4)]
    report = Report(
        created="now",
        machine="a machine",
        model="a model",
        num_clients=7,
        prompt_words=512,
        cancels=tuple(cancels),
    )
    _, _, row, *_ = render(report).splitlines()
    assert row.startswith("| decode | 3 | 2.00 / 2.90 / 2.98 / 3.00 | 10.0 /")
