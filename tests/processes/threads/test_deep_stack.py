"""Native code may call itself deeply in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from trioserve.processes.threads.deep_stack import run_with_deep_stack


def test_the_result_and_the_error_come_back() -> None:
    assert run_with_deep_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run_with_deep_stack(lambda: 1 / 0)


def test_other_threads_keep_their_usual_stacks() -> None:
    before = threading.stack_size()
    run_with_deep_stack(lambda: None)
    assert threading.stack_size() == before
