"""Endpoints of the requests that the server is answering: see, cancel and resume them.

With several HTTP processes, all of them are asked. A stream is taken up again on the path of its
first request.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec
from quart import Response
import trio

from ...api.shared.sse import respond_stream, send_log
from ...errors import InvalidParameter, RequestNotFound
from ...frontend import TextEngine
from ...http.keys.keys import name_key
from ...http.keys.siblings import (
    AwaitAdapters,
    Cards,
    DescribeRequests,
    Details,
    ListRequests,
    Question,
    ReadMetrics,
    ask_siblings,
)
from ...http.live.live_requests import LiveRequest
from ...http.live.request_details import describe_request
from ...http.record.cards import RequestDetailsList, RequestList
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.resumable import HEADER, ResumableStream
from ...http.wire.respond import respond_json
from ..metrics import list_samples


def resume_stream(state: ServerState, request: ScopedRequest) -> Response:
    """Answer with the events behind the one that the client has seen last.

    Raises:
      StreamNotFound
      ShuttingDown: the server drains.
    """
    state.lifecycle.check_open()
    assert request.url_rule is not None, "the path has a route"
    stream, number = state.resumable.find(
        request.headers[HEADER], request.live.key, request.url_rule.rule
    )
    connection = stream.claim(number)
    # Also if the answer never begins.
    request.resources.callback(stream.release, connection)
    state.resumable.num_resumed += 1
    request.live.stream = request.meter = stream.meter
    request.progress.follow(stream.meter)
    return respond_stream(partial(_send, request, stream, connection, number))


async def _send(
    request: ScopedRequest,
    stream: ResumableStream,
    connection: trio.CancelScope,
    number: int,
) -> bytes:
    async with request.open_events(stream.comment) as events:
        return await send_log(request, events, stream, connection, number)


# Each has a tree of tasks, of some kilobytes.
_MAX_DETAILED: Final = 16


async def answer_requests(state: ServerState, request: ScopedRequest) -> Response:
    """List the requests that this one may see."""
    return await _answer(state, request, wanted=_read_key(request))


async def answer_request(state: ServerState, request: ScopedRequest) -> Response:
    """Show the requests with an id, and everything that they hold."""
    question = DescribeRequests(asker=request.live.key, request_id=_read_id(request))
    own = await _describe(state, question, request.live)
    parts = [own, *await ask_siblings(state.siblings, question, Details)]
    shown = [each for part in parts for each in part.shown]
    if not shown:
        raise RequestNotFound(question.request_id)
    shown.sort(key=lambda each: -each.age_seconds)
    num_left_out = sum(part.num_left_out for part in parts)
    return respond_json(
        RequestDetailsList(data=tuple(shown), num_left_out=num_left_out)
    )


async def answer_cancel_requests(
    state: ServerState, request: ScopedRequest
) -> Response:
    """Cancel all requests that this one may see."""
    if request.path.endswith("/"):
        # The id of a script was empty.
        raise RequestNotFound("")
    return await _answer(state, request, wanted=_read_key(request), cancels=True)


async def answer_cancel_request(state: ServerState, request: ScopedRequest) -> Response:
    """Cancel the requests with an id."""
    return await _answer(state, request, request_id=_read_id(request), cancels=True)


async def _answer(
    state: ServerState,
    request: ScopedRequest,
    *,
    wanted: str | None = None,
    request_id: str | None = None,
    cancels: bool = False,
) -> Response:
    """Show requests, and cancel them if that is wanted; they are shown as they were.

    Raises:
      RequestNotFound: none has the id.
    """
    question = ListRequests(
        asker=request.live.key, wanted=wanted, request_id=request_id, cancels=cancels
    )
    own = _select(state, question, request.live)
    cards = [each.describe() for each in own]
    # The requests of all processes stand in the order of their ages.
    for others in await ask_siblings(state.siblings, question, Cards):
        cards = sorted(cards + others, key=lambda each: -each.age_seconds)
    if request_id is not None and not cards:
        raise RequestNotFound(request_id)
    if cancels:
        _cancel(own)
    return respond_json(RequestList(data=tuple(cards)))


def _read_id(request: ScopedRequest) -> str:
    assert request.view_args is not None, "the route has a part for the id"
    return str(request.view_args["request_id"])


def _read_key(request: ScopedRequest) -> str | None:
    """Return the name of the key that the query names; None for all.

    Raises:
      InvalidParameter: the query names something else, or two keys. To ignore that would
        cancel the wrong ones.
    """
    for name in request.args:
        if name != "key":
            raise InvalidParameter(name[:64], "is not known; only key is taken")
    keys = request.args.getlist("key")
    if len(keys) > 1:
        raise InvalidParameter("key", "may be given once")
    return keys[0] if keys else None


async def answer_sibling(state: ServerState, question: bytes) -> bytes:
    """Answer a question of another HTTP process."""
    answer: object
    match msgspec.msgpack.decode(question, type=Question):
        case ListRequests() as listing:
            found = _select(state, listing)
            answer = [each.describe() for each in found]
            if listing.cancels:
                _cancel(found)
        case DescribeRequests() as describing:
            answer = await _describe(state, describing)
        case ReadMetrics():
            answer = list_samples(state)
        case AwaitAdapters(revision=revision):
            if isinstance(state.engine, TextEngine):
                await state.engine.engine.wait_adapters(revision)
            answer = True
    return msgspec.msgpack.encode(answer)


def _select(
    state: ServerState, question: ListRequests, asker: LiveRequest | None = None
) -> list[LiveRequest]:
    """Return the requests of this process that a question asks for, the oldest first.

    Args:
      asker: the request that asks, which is not shown; None if it is in another process.
    """
    return [
        each
        for each in state.live.list_for(question.asker)
        if each is not asker
        and question.wanted in (None, name_key(each.key))
        and question.request_id in (None, each.id)
    ]


def _cancel(found: Iterable[LiveRequest]) -> None:
    for each in found:
        each.cancel()


async def _describe(
    state: ServerState, question: DescribeRequests, asker: LiveRequest | None = None
) -> Details:
    """Describe the requests of this process with an id."""
    listing = ListRequests(asker=question.asker, request_id=question.request_id)
    found = _select(state, listing, asker)
    shown = [
        await describe_request(each, each.model.engine or state.engine)
        for each in found[:_MAX_DETAILED]
    ]
    return Details(shown=shown, num_left_out=len(found) - len(shown))
