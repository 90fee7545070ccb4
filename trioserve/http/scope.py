"""The scope of one request: all resources of a request are closed at its end.

quart-trio gives each request a nursery and cancels it when the client leaves. But quart
does not always start the generator of a response, and then its `finally` never runs. So
the resources of a handler belong to a stack that the connection closes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart import request as quart_request
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioRequest
import trio

from ..observe import Owner, find_owner
from ..types.sampling import SamplingParams
from .answer import Answer, EventConnection
from .bodies.memory import name_peer
from .bodies.upload import ChunkedBody
from .connection import INVITE_BODY, PEER, Peer
from .keys.key_use import Ticket
from .keys.keys import name_key
from .live.live_requests import LiveRequest
from .live.model_hold import ModelHold
from .record.progress import (
    MAX_PATH,
    EndedRequest,
    RequestProgress,
    SamplingFacts,
    TokenCounts,
    TraceHeaders,
)
from .record.request_counts import Cancellation
from .record.stream_meter import StreamMeter
from .state import ServerState
from .streams.keepalive import COMMENT, KeepAlive
from .streams.resumable import ResumableStreams
from .time_limit import TimeLimit
from .wire.error_body import HEADER, RequestId

# Longer states of traces are dropped. W3C asks for 512 characters.
_MAX_TRACE_STATE: Final = 4096


class _HasState(Protocol):
    """The app. Its class cannot be imported here, because it imports this module."""

    state: ServerState


class ScopedRequest(TrioRequest):
    """A request with its resources, its id and its progress.

    Attributes:
      resources: closed after the response was sent or given up.
      arrived_at: trio.current_time() when the head of the request had come.
      time_limit: ends the request at its deadline.
      live: shows the request to others.
      ticket: the request's part in the use of its key.
      id: the id in the answer and in the log.
      owner: of all that the request does.
      progress: the phase of the request.
      cancellation: measures it, if there is one.
      peer: records whether the answer was sent.
      answer: sends the answer.
      meter: counts the tokens of an answer that is generated.
      sampling: of an answer that is generated.
      num_pooled_tokens: the tokens of texts that were pooled.
      keepalive: sends comments into streams that are silent.
      model: keeps the model that the request uses.
      generation: closed with the resources, unless the stream outlives the connection.
      resumable: the streams that do so; None if no stream does.
      is_resumable: the stream of this request is one of them.
      is_probe: monitors ask for it again and again.
    """

    body_class = ChunkedBody  # type: ignore[assignment]
    body: ChunkedBody
    resources: AsyncExitStack
    generation: AsyncExitStack
    resumable: ResumableStreams | None
    arrived_at: float
    time_limit: TimeLimit
    live: LiveRequest
    ticket: Ticket
    model: ModelHold
    id: RequestId
    owner: Owner
    progress: RequestProgress
    cancellation: Cancellation
    peer: Peer
    answer: Answer
    keepalive: KeepAlive
    meter: StreamMeter | None = None
    sampling: SamplingParams | None = None
    num_pooled_tokens = 0
    is_resumable = False
    is_probe = False

    def describe_end(self, model: str | None) -> EndedRequest:
        """Return the facts about the request, which has just ended."""
        now, meter, answer = trio.current_time(), self.meter, self.answer
        return EndedRequest(
            id=str(self.id),
            key=name_key(self.live.key),
            method=self.method,
            path=self.path[:MAX_PATH],
            route=None if self.url_rule is None else self.url_rule.rule,
            status=answer.status,
            arrived_at=self.arrived_at,
            ended_at=now,
            spans=tuple(self.progress.divide(self.arrived_at, now)),
            phase=answer.failed_in,
            tokens=self._count_tokens(),
            finish_reasons={} if meter is None else meter.finish_reasons,
            error=answer.error,
            ending=answer.ending,
            model=model,
            sampling=(
                None if self.sampling is None else SamplingFacts.of(self.sampling)
            ),
            trace=self._find_trace(),
        )

    def _find_trace(self) -> TraceHeaders | None:
        parents = self.headers.getlist("Traceparent")
        if not parents:
            return None
        # Several parents are none. The states of several headers are one list.
        states = ",".join(self.headers.getlist("Tracestate"))
        is_short = len(states) <= _MAX_TRACE_STATE
        return TraceHeaders(
            traceparent=",".join(parents)[:_MAX_TRACE_STATE],
            tracestate=states if states and is_short else None,
        )

    def _count_tokens(self) -> TokenCounts | None:
        if self.meter is not None:
            return TokenCounts.of(self.meter.usage)
        if not self.num_pooled_tokens:
            return None
        return TokenCounts(prompt=self.num_pooled_tokens, cached=0, completion=0)

    @asynccontextmanager
    async def open_events(
        self, comment: bytes = COMMENT
    ) -> AsyncIterator[EventConnection]:
        """Send events to the client in the block, and comments in between."""
        connection = EventConnection(self.answer, comment)
        with self.keepalive.hold(connection):
            yield connection
        # The rest of the answer goes another way.
        await connection.wait_comment()


class ScopedConnection(TrioASGIHTTPConnection):
    """Serves one request. Quart calls that a connection."""

    async def __call__(
        self, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        with Owner().hold():
            await super().__call__(receive, send)

    def _create_request_from_scope(self, send: ASGISendCallable) -> Request:
        request = super()._create_request_from_scope(send)
        scoped = cast(ScopedRequest, request)
        # Werkzeug writes it in capitals.
        scoped.method = self.scope["method"]
        scoped.id = RequestId(scoped.headers.get(HEADER, ""))
        owner = find_owner()
        assert owner is not None, "the connection holds an owner"
        owner.id, scoped.owner = scoped.id, owner
        scoped.progress = RequestProgress()
        scoped.peer = Peer()
        extensions = cast(dict[str, Any], self.scope.setdefault("extensions", {}))
        extensions[PEER] = scoped.peer
        state = cast(_HasState, self.app).state
        scoped.answer = Answer(
            send,
            self.scope,
            request_id=scoped.id,
            peer=scoped.peer,
            progress=scoped.progress,
            cors=state.cors,
        )
        # Until its key is known.
        scoped.ticket = Ticket(state.key_uses.find(None))
        scoped.resumable = state.resumable if state.resumable.is_enabled else None
        scoped.model = ModelHold(scoped.progress)
        scoped.cancellation = Cancellation(
            scoped.id, state.counts, partial(state.after_aborts, scoped.model)
        )
        scoped.keepalive = state.keepalive
        body = scoped.body
        # It answers `Expect: 100-continue`. Only HTTP/1 has this extension.
        body.invite = extensions.get(INVITE_BODY)
        body.budget, body.heap = state.bodies, state.heap
        body.peer = name_peer(self.scope.get("client"))
        body.part_seconds = state.config.body_timeout
        body.wait = trio.CancelScope(deadline=trio.current_time() + body.part_seconds)
        return request

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Receive the body, and cancel the request when its client has left."""
        await super().handle_messages(nursery, request, receive)
        scoped = cast(ScopedRequest, request)
        if not scoped.peer.is_answered and not scoped.is_resumable:
            scoped.cancellation.begin(scoped.progress.phase)
        counts = cast(_HasState, self.app).state.counts
        scoped.answer.note_end(None if scoped.is_resumable else counts)

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        scoped = cast(ScopedRequest, request)
        scoped.arrived_at = trio.current_time()
        state = cast(_HasState, self.app).state
        scoped.time_limit = TimeLimit(state.config, scoped.arrived_at, scoped.peer)
        async with AsyncExitStack() as scoped.resources:
            scoped.resources.callback(scoped.cancellation.end)
            scoped.live = LiveRequest(
                named=scoped.id,
                method=scoped.method,
                path=scoped.path,
                arrived_at=scoped.arrived_at,
                progress=scoped.progress,
                time_limit=scoped.time_limit,
                cancellation=scoped.cancellation,
                owner=scoped.owner,
                model=scoped.model,
            )
            # This is closed last, so a request counts as running until all is released.
            scoped.resources.enter_context(state.lifecycle.hold(scoped.live))
            scoped.resources.callback(state.live.note_ended, scoped.live)
            scoped.resources.callback(_record, state, scoped)
            scoped.resources.callback(scoped.body.release)
            scoped.generation = AsyncExitStack()
            scoped.generation.callback(scoped.model.close)
            await scoped.resources.enter_async_context(scoped.generation)
            with scoped.time_limit.whole:
                await super().handle_request(nursery, request, scoped.answer.send)
            if scoped.time_limit.whole.cancelled_caught:
                # The client did not take its answer in time, or its stream has gone to another
                # connection. Nothing is left to send.
                nursery.cancel_scope.cancel()


def _record(state: ServerState, request: ScopedRequest) -> None:
    """Give a request that has ended to logs and traces."""
    if state.sinks and not request.is_probe:
        engine = request.model.engine or state.engine
        state.record(request.describe_end(None if engine is None else engine.info.name))


def current_request() -> ScopedRequest:
    """Return the object behind quart's proxy, which is bound to this task's context."""
    return cast(ScopedRequest, cast(Any, quart_request)._get_current_object())
