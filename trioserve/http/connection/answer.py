"""Sends an answer to the client."""

from __future__ import annotations

import logging

from hypercorn.typing import (
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
)
from quart.wrappers import Request

from . import Peer
from ...observe.log_lines import escape
from ..progress import Progress
from ..request_id import HEADER_BYTES, RequestId

logger = logging.getLogger(__name__)


class Answer:
    """Sends the answer of one request, with the id of the request in its head.

    All answers go through this class, also errors.
    """

    def __init__(
        self,
        send: ASGISendCallable,
        request: Request,
        *,
        request_id: RequestId,
        peer: Peer,
        progress: Progress,
    ) -> None:
        self._send = send
        self._request = request
        self._id = request_id
        self._peer = peer
        self._progress = progress

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            self._begin(event)
        await self._send(event)
        if self._peer.is_lost:
            # The request runs until it is cancelled, but its output is dropped.
            self._progress.stop("write")

    def _begin(self, event: HTTPResponseStartEvent) -> None:
        self._progress.enter("write")
        event["headers"] = [*event["headers"], (HEADER_BYTES, str(self._id).encode())]
        logger.debug(
            "request %s: %s %s is answered with %d",
            self._id,
            escape(self._request.method),
            escape(self._request.path),
            event["status"],
        )
