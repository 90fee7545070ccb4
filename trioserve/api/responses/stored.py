"""Endpoints of responses that are stored or run: read, follow, cancel and delete them."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec
from quart import Response
import trio

from ...errors import InvalidParameter
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.response_store import StoredResponse
from ...http.wire.respond import JSON, respond_json
from .answers import DeletedResponse, InputItemList
from .background import follow
from .calls import run_reading

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 100

_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


async def answer_stored_response(
    state: ServerState, request: ScopedRequest
) -> Response:
    """Show a response, or follow its events."""
    stored = _find(state, request)
    wants_stream = request.args.get("stream", "false").lower()
    if wants_stream not in _BOOLEANS:
        raise InvalidParameter("stream", "must be true or false")
    if _BOOLEANS[wants_stream]:
        if stored.log is None:
            raise InvalidParameter(
                "stream", "no events are kept: that needs background and stream"
            )
        return follow(request, stored.log, _read_number(request, "starting_after") + 1)
    return _show(stored)


async def answer_delete_response(
    state: ServerState, request: ScopedRequest
) -> Response:
    """Forget a response."""
    response_id = _read_id(request)
    state.responses.remove(response_id, trio.current_time(), request.live.key)
    return respond_json(DeletedResponse(id=response_id))


async def answer_cancel_response(
    state: ServerState, request: ScopedRequest
) -> Response:
    """End a response in the background; one that has ended stays as it is."""
    stored = _find(state, request)
    if not stored.is_background:
        raise InvalidParameter(
            "response_id", "only responses in the background can be cancelled"
        )
    if stored.running is not None:
        stored.running.cancel()
        await stored.running.wait_ended()
        stored = _find(state, request)
    return _show(stored)


async def answer_input_items(state: ServerState, request: ScopedRequest) -> Response:
    """List the items that a response answers, with the items of earlier responses."""
    stored = _find(state, request)
    limit = _read_number(request, "limit", default=_DEFAULT_LIMIT)
    if not 1 <= limit <= _MAX_LIMIT:
        raise InvalidParameter("limit", f"must be between 1 and {_MAX_LIMIT}")
    order = request.args.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter("order", "must be asc or desc")
    items = await run_reading(
        state.workers, partial(_list_items, stored), stored.num_bytes
    )
    if order == "desc":
        items.reverse()
    begin = _find_place(items, request.args.get("after"))
    page = items[begin : begin + limit]
    return respond_json(
        InputItemList(
            data=tuple(raw for _, raw in page),
            first_id=page[0][0] if page else None,
            last_id=page[-1][0] if page else None,
            has_more=begin + limit < len(items),
        )
    )


class _HasId(msgspec.Struct):
    id: str


def _list_items(stored: StoredResponse) -> list[tuple[str, msgspec.Raw]]:
    """Return the ids and the JSON of all items, oldest first."""
    parts = [part for turn in stored.earlier for part in (turn.input, turn.output)]
    return [
        (msgspec.json.decode(raw, type=_HasId).id, raw)
        for part in (*parts, stored.turn.input)
        for raw in msgspec.json.decode(part, type=list[msgspec.Raw])
    ]


def _find_place(items: list[tuple[str, msgspec.Raw]], after: str | None) -> int:
    """Return the place behind an item.

    Raises:
      InvalidParameter: there is no such item.
    """
    if after is None:
        return 0
    for place, (item_id, _) in enumerate(items):
        if item_id == after:
            return place + 1
    raise InvalidParameter("after", "there is no such item")


def _find(state: ServerState, request: ScopedRequest) -> StoredResponse:
    return state.responses.find(
        _read_id(request), trio.current_time(), request.live.key
    )


def _read_id(request: ScopedRequest) -> str:
    assert request.view_args is not None, "the route has a part for the id"
    return str(request.view_args["response_id"])


def _read_number(request: ScopedRequest, name: str, *, default: int = -1) -> int:
    """Read a whole number of the query.

    Raises:
      InvalidParameter: it is something else.
    """
    text = request.args.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidParameter(name, "must be a whole number")
    return int(text)


def _show(stored: StoredResponse) -> Response:
    content = stored.content if stored.running is None else stored.running.show()
    return Response(content, content_type=JSON)
