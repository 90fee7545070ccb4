"""The kit's processes exchange whole lines, and report when one ends."""

from __future__ import annotations

import os
import signal
import sys
import time

from kit.process import LineReader, ProcessEnded, open_child, stopping_at_sigterm
from kit.runs import list_errors
from kit.server import open_server
from kit.usage import list_processes, read_cpu_seconds, read_memory, read_own_memory
import pytest
import trio
import trio.testing

PYTHON = [sys.executable, "-I", "-S", "-c"]


async def test_lines_are_whole_for_any_division_of_the_bytes() -> None:
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    lines = LineReader(receiver)
    for data in (b"re", b"set\nrep", b"ort\n\nrest"):
        await sender.send_all(data)
    await sender.aclose()
    assert [await lines.read() for _ in range(4)] == [b"reset", b"report", b"", None]


async def test_a_child_answers_lines_until_its_input_ends() -> None:
    code = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    with trio.fail_after(30):
        async with open_child([*PYTHON, code]) as child:
            assert await child.ask("go") == b"GO"


async def test_the_end_of_a_child_is_reported_with_its_name() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ProcessEnded, match="the encoder has ended"),
        flatten_subgroups=True,
    ):
        async with open_child([*PYTHON, "pass"], name="the encoder") as child:
            await child.ask("go")


async def test_sigterm_becomes_an_error() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ProcessEnded, match="SIGTERM")):
        async with stopping_at_sigterm():
            await trio.testing.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()


async def test_a_block_without_sigterm_ends_by_itself() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with trio.fail_after(30):
        async with stopping_at_sigterm():
            await trio.testing.wait_all_tasks_blocked()
            assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_errors_are_found_in_groups_of_groups() -> None:
    one, other = ValueError(), OSError()
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [one]), other])
    assert list(list_errors(group)) == [one, other]


# Servers.

SERVER = """
import signal, sys
print("loading", file=sys.stderr)
print("x: ready after 1.0 s: tiny on http://127.0.0.1:81", file=sys.stderr)
sys.stderr.write("a lot\\n" * 100_000)
signal.pause()
"""


async def test_a_servers_address_is_read_from_its_log_and_the_rest_is_drained() -> None:
    with trio.fail_after(30):
        async with open_server([*PYTHON, SERVER]) as server:
            assert server.url == "http://127.0.0.1:81"
            assert server.port == 81


async def test_a_server_that_does_not_start_is_reported_with_its_log() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ProcessEnded, match="no such model"), flatten_subgroups=True
    ):
        async with open_server([*PYTHON, "raise SystemExit('no such model')"]):
            raise AssertionError("it has no address")


# Holds 64 MB in a child. Both processes stand still until the input ends.
HOLDER = """
import os, sys
if os.fork() == 0:
    held = b"x" * 64_000_000
    print(os.getppid(), os.getpid(), flush=True)
sys.stdin.read()
"""


async def test_memory_is_read_with_children_or_without() -> None:
    with trio.fail_after(30):
        async with open_child([*PYTHON, HOLDER]) as holder:
            pids = [int(pid) for pid in (await holder.read()).split()]
            assert list_processes(pids[0]) == pids
            assert 1 < read_own_memory(pids[0]) < 64 < read_own_memory(pids[1])
            assert 64 < read_memory(pids[0])


def test_the_cpu_time_of_a_process_is_read() -> None:
    before = time.process_time()
    # Linux counts hundredths of a second.
    assert before - 0.1 <= read_cpu_seconds(os.getpid())
    assert read_cpu_seconds(os.getpid()) <= time.process_time() + 0.1
