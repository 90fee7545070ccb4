"""The endpoints of OpenAI's Responses."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import EVENTS, JSON
from .answers import DeletedResponse, InputItemList, ResponseObject
from .body import RESPONSE_BODY
from .events import AnyResponseEvent
from .handler import answer_response
from .stored import (
    answer_cancel_response,
    answer_delete_response,
    answer_input_items,
    answer_stored_response,
)

_NO_RESPONSE: Final = {
    "400": "A parameter is wrong.",
    "404": "The response is not stored, or not any more.",
}

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v1/responses",),
        handler=answer_response,
        summary="Answer a conversation of items, at once, as a stream, or later.",
        bodies=(RESPONSE_BODY,),
        example={"input": "Hello!"},
        answers={
            JSON: ResponseObject,
            EVENTS: AnyResponseEvent,
        },
    ),
    Route(
        method="GET",
        paths=("/v1/responses/<string:response_id>",),
        handler=answer_stored_response,
        summary="Show a stored response, or follow its events.",
        answers={
            JSON: ResponseObject,
            EVENTS: AnyResponseEvent,
        },
        query={
            "stream": "Whether to follow the events: true or false.",
            "starting_after": "The number of the last event that the client has.",
        },
        errors=_NO_RESPONSE,
    ),
    Route(
        method="DELETE",
        paths=("/v1/responses/<string:response_id>",),
        handler=answer_delete_response,
        summary="Forget a stored response.",
        answers={JSON: DeletedResponse},
        errors=_NO_RESPONSE,
    ),
    Route(
        method="POST",
        paths=("/v1/responses/<string:response_id>/cancel",),
        handler=answer_cancel_response,
        summary="End a response in the background.",
        answers={JSON: ResponseObject},
        errors=_NO_RESPONSE,
    ),
    Route(
        method="GET",
        paths=("/v1/responses/<string:response_id>/input_items",),
        handler=answer_input_items,
        summary="List the items that a stored response answers.",
        answers={JSON: InputItemList},
        query={
            "after": "The id of the item before the first one.",
            "limit": "The most items: 1 to 100; 20 by default.",
            "order": "asc for the oldest first, desc (the default) for the newest.",
        },
        errors=_NO_RESPONSE,
    ),
)
