"""Answers probes in front of quart, which would take most of their time.

Probes are the endpoints that monitors and load balancers ask all the time, and that need
the state of the server and nothing of the request. quart has routes to them, too: it
answers whatever is not the plain form of their request, such as another method, a slash
at the end of the path, a request with a body, or one by a foreign name. Both paths give
the same answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseStartEvent,
    HTTPScope,
    Scope,
)
from quart import Response

from ...http.answer import Answer
from ...http.connection import PEER, Peer
from ...http.record.progress import RequestProgress
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.error_body import HEADER_BYTES, RequestId
from ...http.wire.respond import PlainAnswer

Report = Callable[[ServerState], PlainAnswer]
ReportAll = Callable[[ServerState], Awaitable[PlainAnswer]]
AsgiApp = Callable[[Scope, ASGIReceiveCallable, ASGISendCallable], Awaitable[None]]

# A request with one of them has a body, which this module does not read.
_BODY_FIELDS = (b"content-length", b"transfer-encoding")


class Probe:
    """A handler (route.py) that needs nothing of its request.

    Args:
      report: makes the answer, and neither waits nor changes anything.
      report_all: makes the answer with the knowledge of other HTTP processes, which it asks
        them; None if each process answers for itself.
    """

    def __init__(self, report: Report, report_all: ReportAll | None = None) -> None:
        self.report = report
        self._report_all = report_all
        self.__name__ = report.__name__
        self.__doc__ = report.__doc__

    def waits(self, state: ServerState) -> bool:
        """Return whether its answer waits for other processes."""
        return self._report_all is not None and state.siblings is not None

    async def __call__(self, state: ServerState, request: ScopedRequest) -> Response:
        if self._report_all is not None and self.waits(state):
            return (await self._report_all(state)).to_response()
        return self.report(state).to_response()


class ProbesFirst:
    """An ASGI app that answers probes, and hands all other requests to `app`.

    Args:
      probes: by path.
    """

    def __init__(
        self, app: AsgiApp, state: ServerState, probes: dict[str, Probe]
    ) -> None:
        self._app = app
        self._state = state
        self._probes = {k: v for k, v in probes.items() if not v.waits(state)}

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "http" and scope["path"] in self._probes:
            is_foreign = self._state.hosts.find_foreign(scope) is not None
            if _is_plain(scope) and not is_foreign and await self._answer(scope, send):
                return
        await self._app(scope, receive, send)

    async def _answer(self, scope: HTTPScope, send: ASGISendCallable) -> bool:
        """Answer a probe; returns whether it was answered."""
        progress, peer = RequestProgress(), Peer()
        with self._state.lifecycle.hold(progress):
            try:
                plain = self._probes[scope["path"]].report(self._state)
            except Exception:
                # quart calls the probe again, and makes an answer of the error.
                return False
            counts = self._state.counts
            counts.answered[scope["path"], str(plain.status)] += 1
            cast(dict[str, Any], scope["extensions"])[PEER] = peer
            answer = Answer(
                send,
                scope,
                request_id=RequestId(_read_id(scope)),
                peer=peer,
                progress=progress,
                cors=self._state.cors,
            )
            start: HTTPResponseStartEvent = {
                "type": "http.response.start",
                "status": plain.status,
                "headers": plain.list_fields(),
            }
            await answer.send(start)
            await answer.send(
                {
                    "type": "http.response.body",
                    "body": plain.content,
                    "more_body": False,
                }
            )
        answer.note_end(counts)
        return True


def _is_plain(scope: HTTPScope) -> bool:
    """Return whether the request is a GET or HEAD that has certainly no body.

    A body without fields that announce it is possible in HTTP/2.
    """
    return (
        scope["method"] in ("GET", "HEAD")
        and scope["http_version"] in ("1.0", "1.1")
        and not scope["root_path"]
        and not any(name in _BODY_FIELDS for name, _ in scope["headers"])
    )


def _read_id(scope: HTTPScope) -> str:
    """Return the first header with the client's id of the request, or nothing."""
    for name, value in scope["headers"]:
        if name == HEADER_BYTES:
            return value.decode("latin-1")
    return ""
