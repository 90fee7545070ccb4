"""The requests that a server is answering, which clients can see and cancel.

Also bounds the memory of tokens that clients have not taken yet. A slow client takes 64 KiB now
and then, which is enough to stay connected. Meanwhile the device generates on, and an answer of
many sequences with log probabilities may be gigabytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
import logging
from typing import Final, Protocol

import trio

from ...errors import ReaderTooSlow, RequestCancelled
from ...observe import Owner
from ..keys.keys import Key, may_see, name_key
from ..record.cards import RequestCard
from ..record.progress import Phase, RequestProgress
from ..record.request_counts import Cancellation
from .lifecycle import Lifecycle
from .model_hold import ModelHold

# Enough to look for in a log.
_MAX_ENDED = 5


class LiveStream(Protocol):
    """The tokens of a request that generates."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_unread_bytes(self) -> int: ...
    def fail(self, error: Exception) -> None: ...


class LiveLimit(Protocol):
    """The time limit of a request."""

    @property
    def seconds(self) -> float | None: ...
    def cancel(self, *, is_streaming: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class _StreamLimit:
    """The time limit of a request without a connection, which its stream keeps."""

    seconds: float | None

    def cancel(self, *, is_streaming: bool) -> None: ...


@dataclass(kw_only=True, slots=True, eq=False)
class LiveRequest:
    """A request that is being answered.

    Attributes:
      named: the request's id in the answer's header, as str() gives it; the body may still
        name it. Several requests may have the same.
      arrived_at: trio.current_time() when its head had come.
      owner: of all that the request does.
      model: keeps the model that it uses.
      key: the client's; None until it is known, or if the server has no keys.
      stream: None before the engine has the request.
    """

    named: object
    method: str
    path: str
    arrived_at: float
    progress: RequestProgress
    time_limit: LiveLimit
    cancellation: Cancellation
    owner: Owner
    model: ModelHold = field(default_factory=ModelHold)
    key: Key | None = None
    stream: LiveStream | None = None

    @property
    def phase(self) -> Phase:
        return self.progress.phase

    @property
    def deadline_seconds(self) -> float | None:
        """The time that is left of its limit; None if it has none."""
        seconds = self.time_limit.seconds
        if seconds is None:
            return None
        return self.arrived_at + seconds - trio.current_time()

    @property
    def id(self) -> str:
        return str(self.named)

    @property
    def client(self) -> str:
        """The name of the client, as the engine has it."""
        return name_key(self.key) or ""

    def describe(self) -> RequestCard:
        now, stream = trio.current_time(), self.stream
        return RequestCard(
            id=self.id,
            method=self.method,
            path=self.path,
            model=self.model.name,
            key=name_key(self.key),
            phase=self.phase,
            age_seconds=now - self.arrived_at,
            timeout_seconds=self.time_limit.seconds,
            prompt_tokens=0 if stream is None else stream.num_prompt_tokens,
            completion_tokens=0 if stream is None else stream.num_output_tokens,
        )

    def detach(
        self, progress: RequestProgress, cancellation: Cancellation
    ) -> LiveRequest:
        """Return the request as it goes on without a connection.

        Only its stream ends it. The caller sets the stream and the owner.
        """
        limit = _StreamLimit(self.time_limit.seconds)
        return replace(
            self, progress=progress, cancellation=cancellation, time_limit=limit
        )

    def fail(self, error: Exception) -> None:
        """End the stream of the request by an error."""
        assert self.stream is not None, "the engine has the request"
        self.stream.fail(error)

    def cancel(self) -> None:
        """End the request: its client gets an error."""
        self.cancellation.begin(self.progress.phase)
        if self.stream is not None:
            self.stream.fail(RequestCancelled())
            # Now, because the client may be slow to take the error.
            self.cancellation.end()
        self.time_limit.cancel(is_streaming=self.stream is not None)


class LiveRequests:
    """The requests of a server that clients may see: all but probes.

    Args:
      lifecycle: holds those with a connection.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._detached: dict[LiveRequest, None] = {}
        self._ended_ids: deque[str] = deque(maxlen=_MAX_ENDED)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[LiveRequest]:
        for each in self._lifecycle.active:
            if isinstance(each, LiveRequest):
                yield each
        yield from self._detached

    @contextmanager
    def hold(self, request: LiveRequest) -> Iterator[None]:
        """Show a request without a connection while the block runs."""
        self._detached[request] = None
        try:
            yield
        finally:
            del self._detached[request]

    def note_ended(self, request: LiveRequest) -> None:
        """Remember the id of a request that ends."""
        self._ended_ids.append(request.id)

    def take_ended_ids(self) -> tuple[str, ...]:
        """Return the ids of the last requests that ended since the last call."""
        ended = tuple(self._ended_ids)
        self._ended_ids.clear()
        return ended

    def list_for(self, key: Key | None) -> list[LiveRequest]:
        """Return the requests that a client with a key may see, the oldest first."""
        visible = (each for each in self if may_see(key, name_key(each.key)))
        # By arrival, because requests without a connection would come last.
        return sorted(visible, key=lambda each: each.arrived_at)


logger = logging.getLogger(__name__)

# The memory may exceed its limit by the tokens of this time.
_LOOK_SECONDS: Final = 1.0


class UnreadLimit:
    """Ends the streams that hold the most unread tokens, if all together hold too much.

    Args:
      limit: bytes.

    Attributes:
      num_ended: streams that were ended.
    """

    def __init__(self, limit: int, live: LiveRequests) -> None:
        self._limit = limit
        self._live = live
        self.num_ended = 0

    @property
    def num_bytes(self) -> int:
        """The approximate memory of all unread tokens."""
        return sum(num_bytes for _, num_bytes in self._weigh())

    async def run(self) -> None:
        """Look after the streams until cancelled."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            self._enforce()

    def _enforce(self) -> None:
        heaviest_last = sorted(self._weigh(), key=lambda weighed: weighed[1])
        total = sum(num_bytes for _, num_bytes in heaviest_last)
        while total > self._limit:
            request, num_bytes = heaviest_last.pop()
            logger.info("request %s: its client takes too little", request.id)
            request.fail(ReaderTooSlow())
            self.num_ended += 1
            total -= num_bytes

    def _weigh(self) -> list[tuple[LiveRequest, int]]:
        return [
            (each, each.stream.num_unread_bytes)
            for each in self._live
            if each.stream is not None
        ]
