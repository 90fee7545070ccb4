"""An answer on its way to the client."""

from __future__ import annotations

import logging
from typing import Any, cast

from hypercorn.typing import ASGISendCallable, ASGISendEvent
from quart.wrappers import Request

from ..observe.log_lines import escape
from .request_id import HEADER, RequestId

logger = logging.getLogger(__name__)

_HEADER = HEADER.lower().encode()


class Answer:
    """Sends the answer of one request, with the request's id in its head.

    Whatever makes the answer, a handler or an error, it comes by here.
    """

    def __init__(
        self, send: ASGISendCallable, request: Request, request_id: RequestId
    ) -> None:
        self._send = send
        self._request = request
        self._id = request_id

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            self._begin(cast(dict[str, Any], event))
        await self._send(event)

    def _begin(self, event: dict[str, Any]) -> None:
        event["headers"] = [*event["headers"], (_HEADER, str(self._id).encode())]
        logger.debug(
            "request %s: %s %s is answered with %d",
            self._id,
            escape(self._request.method),
            escape(self._request.path),
            event["status"],
        )
