"""Sends one request, and waits and tries again where that may help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
import random
import re
from typing import Final

import msgspec
import trio

from ..http.client import FAILURES, describe
from .askers import Asker, ServerGone, WholeAnswer
from .progress import Waits
from .record import ErrorPart, OutputLine, ResponsePart, describe_status, name_line
from .request import BatchRequest

# Refused for now: the server is full, restarts, or has a limit for this key.
_REFUSED: Final = (429, 503)
# Defects that may pass. A 504 is not among them: the request would take as long again.
_FAULTY: Final = (500, 502)

# A full server refuses one line a few times, because Sender then sends less at once. A
# request that stays refused is one that the server cannot take at all.
_MOST_REFUSALS: Final = 100
_MOST_FAULTS: Final = 3
# With pauses that double up to _LONGEST_PAUSE, about a minute: a server restarts meanwhile.
_MOST_FAILURES: Final = 10
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
# A server that asks for more is asked earlier: a batch must not sleep for days.
_LONGEST_WAIT: Final = 60.0

_SECONDS: Final = re.compile(rb"\d{1,6}(\.\d+)?")


class Slots:
    """The requests that may run at once: fewer after a refusal, and more after answers.

    The number is halved and then grows by one for each full round of answers, as TCP does:
    that finds the limits of a server.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter = trio.CapacityLimiter(most)
        self._num_answered = 0
        # Requests that were sent before the last halving say nothing about the new number.
        self._halved_at = -1.0

    @property
    def num_tokens(self) -> int:
        return int(self._limiter.total_tokens)

    async def run(self, send: Callable[[], Awaitable[WholeAnswer]]) -> WholeAnswer:
        """Send a request when its turn has come.

        Raises: as `send`.
        """
        async with self._limiter:
            sent_at = trio.current_time()
            answer = await send()
        if answer.status in _REFUSED:
            self._shrink(sent_at)
        else:
            self._grow()
        return answer

    def _shrink(self, sent_at: float) -> None:
        if sent_at > self._halved_at:
            self._halved_at = trio.current_time()
            self._limiter.total_tokens = max(1, self.num_tokens // 2)
            self._num_answered = 0

    def _grow(self) -> None:
        self._num_answered += 1
        if self._num_answered >= self.num_tokens < self._most:
            self._num_answered = 0
            self._limiter.total_tokens = self.num_tokens + 1


@dataclass(kw_only=True)
class _Tries:
    """The attempts that went wrong, by their kind."""

    refusals: int = 0
    faults: int = 0
    failures: int = 0


class Sender:
    """Turns requests into lines of the output.

    Args:
      check: called when no answer comes for too long; raises if none will come.
      waits: gets the requests that wait to be sent again.
    """

    def __init__(
        self,
        asker: Asker,
        slots: Slots,
        check: Callable[[], Awaitable[None]],
        waits: Waits,
    ) -> None:
        self._asker = asker
        self._slots = slots
        self._check = check
        self._waits = waits

    async def send(self, request: BatchRequest) -> OutputLine:
        """Return the line that answers a request.

        Raises: as `check`, and ServerGone if the key is not taken any more.
        """
        try:
            answer = await self._ask(request)
        except FAILURES as error:
            await self._check()
            return _describe_error(request, "connection_error", describe(error))
        return _describe_answer(request, answer)

    async def _ask(self, request: BatchRequest) -> WholeAnswer:
        """Send a request until there is an answer to keep.

        Raises:
          One of FAILURES.
          ServerGone: the server does not take the key.
        """

        async def send() -> WholeAnswer:
            return await self._asker.post(request.path, request.body)

        tries = _Tries()
        while True:
            try:
                answer = await self._slots.run(send)
            except FAILURES as error:
                tries.failures += 1
                if tries.failures >= _MOST_FAILURES:
                    raise
                await self._wait(
                    _choose_pause(tries.failures), f"no answer, {describe(error)}"
                )
                continue
            if answer.status == 401:
                # It would be the answer to each line that is left.
                raise ServerGone("the server does not take the key any more")
            if answer.status in _REFUSED and tries.refusals < _MOST_REFUSALS:
                tries.refusals += 1
                seconds = _read_retry_after(answer) or _choose_pause(tries.refusals)
            elif answer.status in _FAULTY and tries.faults < _MOST_FAULTS:
                tries.faults += 1
                seconds = _choose_pause(tries.faults)
            else:
                return answer
            await self._wait(seconds, describe_status(answer.status, answer.body))

    async def _wait(self, seconds: float, reason: str) -> None:
        with self._waits.count(seconds, reason):
            await trio.sleep(seconds)


def _choose_pause(attempt: int) -> float:
    """Return seconds that double, and differ between requests that failed together."""
    longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt - 1, 10))
    return longest * random.uniform(0.5, 1.0)


def _read_retry_after(answer: WholeAnswer) -> float:
    """Return the seconds that the server asks for; 0 if it does not."""
    text = _find_field(answer, b"retry-after")
    # The other form, a date, is used by no such server.
    return min(float(text), _LONGEST_WAIT) if _SECONDS.fullmatch(text) else 0.0


def _find_field(answer: WholeAnswer, wanted: bytes) -> bytes:
    return next((value for name, value in answer.fields if name == wanted), b"")


def _describe_answer(request: BatchRequest, answer: WholeAnswer) -> OutputLine:
    body = _compact(answer.body)
    if body is None:
        message = f"HTTP {answer.status}, and the answer is not JSON"
        return _describe_error(request, "invalid_answer", message)
    request_id = _find_field(answer, b"x-request-id").decode("latin-1")
    return OutputLine(
        id=name_line(request.line),
        custom_id=request.custom_id,
        response=ResponsePart(
            status_code=answer.status, request_id=request_id, body=body
        ),
        error=None,
    )


def _compact(body: bytes) -> msgspec.Raw | None:
    """Return JSON that takes one line; None if the body is not JSON."""
    try:
        if b"\n" in body:
            return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(body)))
        return msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _describe_error(request: BatchRequest, code: str, message: str) -> OutputLine:
    return OutputLine(
        id=name_line(request.line),
        custom_id=request.custom_id,
        response=None,
        error=ErrorPart(code=code, message=message),
    )
