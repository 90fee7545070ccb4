"""Threads that load models, and their end when nobody waits for them any more."""

from __future__ import annotations

import importlib
from pathlib import Path
import threading

import pytest
import torch
import trio

from trioserve.processes.threads.fresh_thread import (
    open_fresh_thread,
    run_in_fresh_thread,
)
from trioserve.processes.threads.stopping import (
    Stopped,
    check_stopped,
    checking_torch_calls,
    stopped_by,
)


def list_loads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "loads" in each.name]


async def test_the_result_or_the_error_of_the_work_is_passed_on() -> None:
    assert await run_in_fresh_thread(lambda: 5) == 5
    with pytest.raises(ValueError, match="'x'"):
        await run_in_fresh_thread(lambda: int("x"))


async def test_work_that_checks_has_ended_when_a_cancelled_block_is_left() -> None:
    began = trio.Event()
    token = trio.lowlevel.current_trio_token()
    ended = threading.Event()

    def work() -> None:
        token.run_sync_soon(began.set)
        try:
            while True:
                check_stopped()
        # A library would report broken files in this way.
        except Exception:
            raise AssertionError("it is not an error") from None
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in_fresh_thread, work)
        await began.wait()
        nursery.cancel_scope.cancel()
    assert ended.is_set()


async def test_work_that_does_not_check_is_left_but_not_as_a_daemon() -> None:
    """The interpreter waits for it: ending a thread inside torch ends the process."""
    is_free = threading.Event()
    with trio.CancelScope() as scope:
        async with open_fresh_thread(is_free.wait, stop_seconds=0.01) as thread:
            scope.cancel()
            await thread.wait()
    [left] = list_loads()
    assert not left.daemon
    is_free.set()
    left.join()


async def test_calls_of_torch_are_checks() -> None:
    """They stop a library that loads weights and has no checks of its own."""
    began = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        with checking_torch_calls():
            numbers = torch.ones(8, 8)
            while True:
                numbers = numbers @ numbers
                token.run_sync_soon(began.set)

    with trio.CancelScope() as scope:
        async with open_fresh_thread(work, stop_seconds=60) as thread:
            await began.wait()
            scope.cancel()
            await thread.wait()
    assert scope.cancelled_caught


def test_no_import_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch cannot be imported again after half an import."""
    source = "from trioserve.processes.threads.stopping import check_stopped\ncheck_stopped()\n"
    (tmp_path / "checks_as_it_is_imported.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    flag = threading.Event()
    flag.set()
    with stopped_by(flag):
        importlib.import_module("checks_as_it_is_imported")
        with pytest.raises(Stopped):
            check_stopped()
