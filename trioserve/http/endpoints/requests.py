"""Endpoints of the requests that the server is answering: see and cancel them."""

from __future__ import annotations

from quart import Response

from ...errors import InvalidParameter, RequestNotFound
from ..connection.scope import ScopedRequest
from ..key_file import name_key
from ..live_requests import LiveRequest
from ..request_details import describe_request
from ..respond import respond_json
from ..state import ServerState
from ..wire.descriptions import RequestDetailsList, RequestList

# Each has a tree of tasks, of some kilobytes.
_MAX_DETAILED = 16


async def answer_requests(state: ServerState, request: ScopedRequest) -> Response:
    """List the requests that this one may see."""
    return _show(_select(state, request))


async def answer_request(state: ServerState, request: ScopedRequest) -> Response:
    """Show the requests with an id, and everything that they hold."""
    found = _find(state, request)
    shown = [
        await describe_request(each, state.engine) for each in found[:_MAX_DETAILED]
    ]
    return respond_json(
        RequestDetailsList(data=tuple(shown), num_left_out=len(found) - len(shown))
    )


async def answer_cancel_requests(
    state: ServerState, request: ScopedRequest
) -> Response:
    """Cancel all requests that this one may see."""
    if request.path.endswith("/"):
        # The id of a script was empty.
        raise RequestNotFound("")
    return _cancel(_select(state, request))


async def answer_cancel_request(state: ServerState, request: ScopedRequest) -> Response:
    """Cancel the requests with an id."""
    return _cancel(_find(state, request))


def _select(state: ServerState, request: ScopedRequest) -> list[LiveRequest]:
    """Return the visible requests, or those of the key that the query names.

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
    wanted = keys[0] if keys else None
    return [
        each
        for each in state.live.list_visible(request.live)
        if wanted is None or name_key(each.key) == wanted
    ]


def _find(state: ServerState, request: ScopedRequest) -> list[LiveRequest]:
    assert request.view_args is not None, "the route has a part for the id"
    return state.live.find(request.view_args["request_id"], request.live)


def _cancel(found: list[LiveRequest]) -> Response:
    # They are shown as they were.
    response = _show(found)
    for each in found:
        each.cancel()
    return response


def _show(found: list[LiveRequest]) -> Response:
    return respond_json(RequestList(data=tuple(each.describe() for each in found)))
