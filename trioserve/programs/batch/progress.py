"""The progress of a batch: a bar in a terminal, and a closing line for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import math
import sys
from typing import Any, Final

import msgspec
from tqdm import tqdm
import trio

from ...errors import escape, make_line
from .record import Done, OutputLine

# Seconds between two drawings of a bar whose lines do not move it.
_PAUSE: Final = 0.5

# A longer reason would leave no room for the bar.
_LONGEST_REASON: Final = 60


class _Usage(msgspec.Struct):
    """Usage, by OpenAI's names, old and new, and by Anthropic's."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Wait:
    """One request.

    Args:
      until: on trio's clock.
      reason: HTTP 429, for example.
    """

    until: float
    reason: str


class Waits:
    """All requests that wait now."""

    def __init__(self) -> None:
        self._waits: set[_Wait] = set()

    @contextmanager
    def count(self, seconds: float, reason: str) -> Iterator[None]:
        """Count a request, which waits in the block.

        Args:
          reason: may quote a server.
        """
        wait = _Wait(until=trio.current_time() + seconds, reason=reason)
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def describe(self) -> str:
        """Say how long the next of them waits, and why; "" if none does."""
        if not self._waits:
            return ""
        first = min(self._waits, key=lambda wait: wait.until)
        seconds = max(1, math.ceil(first.until - trio.current_time()))
        reason = make_line(first.reason)
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[: _LONGEST_REASON - 3]}..."
        number = len(self._waits)
        who = "a request waits" if number == 1 else f"{number} wait, the next for"
        return f"{who} {seconds} s: {reason}"


class BatchProgress:
    """Counts the lines that are written.

    Args:
      done: the lines of earlier runs.
      total: all lines of the input; None if they are not known.
      waits: the requests that wait to be sent again.
    """

    def __init__(self, done: Done, total: int | None, waits: Waits) -> None:
        self._waits = waits
        self._before = done.num_lines
        self._total = total
        self._began = trio.current_time()
        self._num_lines = 0
        self._num_input = self._num_output = 0
        self._first_failure = ""
        self.num_failed = done.num_failed
        # A thread that wakes up a bar is not needed where each line updates it.
        tqdm.monitor_interval = 0
        self._bar: Any = tqdm(
            total=total,
            initial=done.num_lines,
            unit=" lines",
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def take(self, line: OutputLine) -> None:
        """Count a line that has been written."""
        self._num_lines += 1
        if line.has_failed:
            self._note_failure(line)
        elif line.response is not None:
            self._count_tokens(line.response.body)
        self._bar.update()

    async def run(self) -> None:
        """Keep the time and the waits of the bar up to date."""
        while not self._bar.disable:
            self.show()
            await trio.sleep(_PAUSE)

    def show(self) -> None:
        """Draw the bar now."""
        parts = [f"{self.num_failed} failed" if self.num_failed else ""]
        parts.append(self._waits.describe())
        self._bar.set_postfix_str(", ".join(filter(None, parts)))

    def close(self) -> None:
        self.show()
        self._bar.close()

    def _note_failure(self, line: OutputLine) -> None:
        self.num_failed += 1
        if not self._first_failure:
            name = repr(line.custom_id) if line.custom_id else line.id
            self._first_failure = f"{name}: {escape(line.describe_failure())}"

    def _count_tokens(self, body: msgspec.Raw) -> None:
        try:
            usage = msgspec.json.decode(body, type=_Body).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if usage is not None:
            self._num_input += usage.prompt_tokens or usage.input_tokens or 0
            self._num_output += usage.completion_tokens or usage.output_tokens or 0

    def describe(self) -> str:
        """Return the closing lines."""
        seconds = max(trio.current_time() - self._began, 1e-3)
        count = self._before + self._num_lines
        of_all = "" if self._total in (None, count) else f" of {self._total}"
        parts = [f"{count}{of_all} lines, {self.num_failed} of them failed"]
        if self._before:
            parts.append(f"{self._before} by earlier runs")
        rates = [f"{self._num_lines / seconds:.1f} lines/s"]
        for number, name in (
            (self._num_input, "input tokens/s"),
            (self._num_output, "output tokens/s"),
        ):
            if number:
                rates.append(f"{number / seconds:.0f} {name}")
        parts.append(f"{self._num_lines} in {seconds:.1f} s ({', '.join(rates)})")
        text = f"run-batch: {'; '.join(parts)}\n"
        if self._first_failure:
            text += f"run-batch: the first failure: {self._first_failure}\n"
        return text
