"""How many functions and files does a streamed chat pass through?

Question
  A reader who follows a request has to open every file that it runs through, and each
  function costs time. How many files and functions of trioserve run for the first token
  of a streamed chat, and how many for each further token?

Machine
  Any; counts do not depend on it.

How to read the answer
  first token    from the connection to the first chunk with text, in all threads.
  further token  from one chunk to the next one: the median of the tokens in the middle.
                 "All" has the functions of any of them, so it counts rare work, too.
  calls          calls of functions, with each step of a generator.

  Comprehensions are not counted, except generator expressions: since Python 3.12 they
  have no frame (PEP 709).

  A request before it has warmed up the server. The device is a fake, and it is not
  counted (kit/chunk_server.py); the engine runs in the server's process.

    python bench/hands.py [--list]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
import statistics
import sys
import threading
from types import CodeType, FrameType

from kit.chunk_server import open_chunk_server, write_requests
from kit.raw import open_request
import trio
import trio.testing

NUM_TOKENS = 40
# Tokens whose work is counted as that of a further one: the second may still belong to
# the first, and the last ends the request.
MIDDLE = slice(5, 35)

# Parts of the package that are no server: the fake device and its engine.
LEFT_OUT = ("testing", "testing_server", "testing_tokenizer")

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


@dataclass(frozen=True, slots=True)
class Hands:
    """Calls of functions, counted by their code."""

    calls: Counter[CodeType] = field(default_factory=Counter)

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.calls}

    def describe(self) -> str:
        return (
            f"{len(self.files)} files, {len(self.calls)} functions, "
            f"{self.calls.total()} calls"
        )


class Trace:
    """Counts the calls of trioserve's functions in all threads."""

    def __init__(self, package: Path) -> None:
        self._folder = f"{package}/"
        self._left_out = tuple(f"{package}/{name}" for name in LEFT_OUT)
        self._values = f"{package}/types/"
        self._is_counted: dict[CodeType, bool] = {}
        self._calls: Counter[CodeType] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count in this thread, and in those that begin in the block."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def take(self) -> Hands:
        """Return the calls since the last time."""
        calls, self._calls = self._calls, Counter()
        return Hands(calls)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        is_counted = self._is_counted.get(code)
        if is_counted is None:
            name = code.co_filename
            is_counted = (
                name.startswith(self._folder)
                and not name.startswith(self._left_out)
                and code.co_name not in COMPREHENSIONS
            )
            self._is_counted[code] = is_counted
        if is_counted and not self._is_asked_by_fake(frame):
            self._calls[code] += 1

    def _is_asked_by_fake(self, frame: FrameType) -> bool:
        """Return whether the fake device asks a plan about itself."""
        if not frame.f_code.co_filename.startswith(self._values):
            return False
        caller = frame.f_back
        # An expression within a property has a frame of its own.
        while caller is not None and caller.f_code.co_filename.startswith(self._values):
            caller = caller.f_back
        return caller is not None and caller.f_code.co_filename.startswith(
            self._left_out
        )


async def measure(trace: Trace) -> list[Hands]:
    """Stream two chats; return the work for each token of the second."""
    tokens: list[Hands] = []
    with trace.running():
        async with open_chunk_server(NUM_TOKENS) as server:
            await read_chat(server.port, lambda: None)
            # The end of the first request is not part of the second.
            await trio.testing.wait_all_tasks_blocked(0.1)
            trace.take()
            await read_chat(server.port, lambda: tokens.append(trace.take()))
    return tokens


async def read_chat(port: int, note_chunk: Callable[[], None]) -> None:
    """Read a streamed chat, and note each chunk that has text."""
    [request] = write_requests("chat", 1, NUM_TOKENS)
    async with open_request(port, request) as stream:
        async for data in stream:
            for _ in range(data.count(b'"content":"') - data.count(b'"content":""')):
                note_chunk()


def describe(code: CodeType, package: Path) -> str:
    path = Path(code.co_filename).relative_to(package)
    return f"{path} {code.co_qualname}"


def report(
    tokens: list[Hands], package: Path, *, with_list: bool = False
) -> Iterator[str]:
    """Write the counts, and with `with_list` also each function with its calls."""
    first, *_ = tokens
    middle = tokens[MIDDLE]
    yield f"first token: {first.describe()}"
    numbers = [
        statistics.median(values)
        for values in zip(
            *((len(each.files), len(each.calls), each.calls.total()) for each in middle)
        )
    ]
    files, functions, calls = numbers
    yield (f"further token: {files:g} files, {functions:g} functions, {calls:g} calls")
    together: Counter[CodeType] = Counter()
    for each in middle:
        together += each.calls
    yield f"further tokens, all: {Hands(together).describe()}"
    if with_list:
        for title, counts, scale in (
            ("first", first.calls, 1),
            ("further", together, len(middle)),
        ):
            for line, count in sorted(
                (describe(code, package), count) for code, count in counts.items()
            ):
                yield f"{title} {count / scale:8.2f} {line}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--list", action="store_true", help="also list the functions with their calls"
    )
    options = parser.parse_args()
    import trioserve

    package = Path(trioserve.__file__).parent
    tokens = trio.run(measure, Trace(package))
    print("\n".join(report(tokens, package, with_list=options.list)))


if __name__ == "__main__":
    main()
