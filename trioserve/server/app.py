"""The ASGI app: it serves the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
import functools
from typing import cast

from hypercorn.typing import HTTPScope
from quart import Response, current_app
from quart.wrappers import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.routing import BaseConverter, Map, MapAdapter

from ..engine.generation.engine import TokenEngine
from ..engine.pooling.engine import TensorEngine
from ..errors import DeadlineExceeded, HostNotAllowed, InvalidConfig, ModelLoading
from ..http.connection import list_connections
from ..http.keys.key_use import Ticket
from ..http.route import Route
from ..http.scope import ScopedConnection, ScopedRequest, current_request
from ..http.state import ServerState
from ..http.streams.resumable import HEADER as LAST_EVENT
from ..http.time_limit import HEADER as TIMEOUT_HEADER
from ..http.wire.respond import EVENTS
from .admin.live_requests import resume_stream
from .admin.probes import AsgiApp, Probe, ProbesFirst
from .admin.status import answer_metrics
from .error_answers import answer_errors, find_dialect
from .rates import log_rates
from .root_path import BelowRootPath
from .routes import ROUTES


class ServingApp(QuartTrio):
    """A Quart app whose requests are ScopedRequests."""

    asgi_http_class = ScopedConnection
    request_class = ScopedRequest
    state: ServerState

    def create_url_adapter(
        self, request: BaseRequestWebsocket | None
    ) -> MapAdapter | None:
        """Choose routes by the path alone: Werkzeug fails at some texts in a Host header."""
        if request is None:
            return super().create_url_adapter(request)
        return self.url_map.bind(
            "localhost",
            script_name=request.root_path,
            url_scheme=request.scheme,
            default_method=request.method,
            path_info=request.path,
        )


def create_http_app(state: ServerState) -> ServingApp:
    """Make the app of one server. `state.engine` may be set later.

    Raises:
      InvalidConfig: the root path is the beginning of a path of the API.
    """
    _check_root_path(state.config.root_path)
    app = ServingApp("trioserve", static_folder=None)
    app.state = state
    app.url_map = _make_paths()
    app.config["MAX_CONTENT_LENGTH"] = state.config.max_body_bytes
    # By default, quart ends a stream silently after a minute.
    app.config["RESPONSE_TIMEOUT"] = None
    for route in ROUTES:
        app.view_functions[route.handler.__name__] = _bind(route, state)
    answer_errors(app, is_for_people=state.config.ui)
    state.audit.list_connections = list_connections
    probes = _find_probes(state)
    app.before_request(_admit(state, {*probes, *_list_documents(state)}))
    app.after_request(_complete(state))

    def find_engines() -> dict[str, TokenEngine | TensorEngine]:
        if state.models is None:
            return {"": each.engine for each in state.engines}
        return {each.info.name: each.engine for each in state.engines}

    async def audit_when_loaded() -> None:
        # Things that the load opens stay open without being leaks.
        if state.engine is None and state.models is None:
            await state.has_loaded.wait()
        await state.audit.run()

    async def start_background() -> None:
        await app.nursery.start(state.background.run)
        await app.nursery.start(state.resumable.tasks.run)
        app.nursery.start_soon(state.drop_old_responses)
        app.nursery.start_soon(state.keepalive.run)
        app.nursery.start_soon(state.unread.run)
        if state.siblings is None or state.siblings.is_first:
            app.nursery.start_soon(log_rates, find_engines)
        app.nursery.start_soon(audit_when_loaded)

    app.before_serving(start_background)
    served: AsgiApp = ProbesFirst(app.asgi_app, state, probes)
    if state.config.root_path:
        served = BelowRootPath(served, state.config.root_path)
    app.asgi_app = served  # type: ignore[method-assign, assignment]
    return app


def _find_probes(state: ServerState) -> dict[str, Probe]:
    """Return the probes by path. They need no key: monitors have none."""
    guarded = answer_metrics if state.config.guard_metrics else None
    return {
        path: route.handler
        for route in ROUTES
        if isinstance(route.handler, Probe) and route.handler is not guarded
        for path in route.paths
    }


def _list_documents(state: ServerState) -> list[str]:
    """Return the paths of documents. A browser shows no key when it opens a page."""
    if not state.config.ui:
        return []
    return [path for route in ROUTES if route.is_document for path in route.paths]


class _NameConverter(BaseConverter):
    """A model's name, or a request's id. It may contain slashes, and begin with one."""

    regex = "(?s:.+)"
    part_isolating = False


def _check_root_path(root_path: str | None) -> None:
    # A path with it and one without it could not be told apart.
    if root_path and any(
        f"{path}/".startswith(f"{root_path}/")
        for route in ROUTES
        for path in route.paths
    ):
        raise InvalidConfig("root_path", "is the beginning of a path of the API")


@functools.cache
def _make_paths() -> Map:
    """Make the paths of all routes: once, because werkzeug compiles them for 20 ms."""
    app = ServingApp("trioserve", static_folder=None)
    app.url_map.converters["name"] = _NameConverter
    # A path with a slash at its end is served like the path without it, and not by a
    # redirect: clients do not send the body of a POST a second time.
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    for route in ROUTES:
        # One view for all paths of a handler, because quart finds views by name.
        name = route.handler.__name__
        for path in route.paths:
            app.add_url_rule(path, name, methods=[route.method])
    return app.url_map


def _bind(route: Route, state: ServerState) -> Callable[..., Awaitable[Response]]:
    takes_up = (
        state.resumable.is_enabled
        and route.method == "POST"
        and EVENTS in route.answers
    )

    # Handlers read the parts of the path from the request.
    async def handle(**view_args: str) -> Response:
        scoped = current_request()
        scoped.is_probe = isinstance(route.handler, Probe)
        if TIMEOUT_HEADER in scoped.headers:
            scoped.time_limit.take_header(scoped.headers[TIMEOUT_HEADER])
        try:
            with scoped.time_limit.until_answer(scoped.progress):
                if takes_up and LAST_EVENT in scoped.headers:
                    return resume_stream(state, scoped)
                if route.bodies:
                    await scoped.ticket.admit(state.siblings)
                    scoped.resources.enter_context(scoped.ticket.hold())
                return await route.handler(state, scoped)
        except ModelLoading:
            if state.models is not None and scoped.model.name is not None:
                # Without this, no client with a short limit would ever get the model.
                state.models.keep_loading(scoped.model.name)
            raise
        except DeadlineExceeded:
            scoped.cancellation.begin(scoped.progress.phase)
            raise
        raise AssertionError("the block returns or raises")

    return handle


def _admit(
    state: ServerState, open_paths: Collection[str]
) -> Callable[[], Awaitable[Response | None]]:
    """Return a function that refuses a request before its body is read."""

    async def admit() -> Response | None:
        scoped = current_request()
        # No websocket comes here (connection/http1.py).
        name = state.hosts.find_foreign(cast(HTTPScope, scoped.scope))
        if name is not None:
            raise HostNotAllowed(name, takes_keys=state.hosts.takes_keys)
        # Before the key is checked: browsers ask without it.
        if state.cors is not None:
            fields = state.cors.answer_preflight(scoped.method, scoped.headers)
            if fields is not None:
                return Response(b"", 200, fields)
        rule = scoped.url_rule
        # For unknown paths, too: strangers learn nothing.
        if rule is None or rule.rule not in open_paths:
            scoped.live.key = state.keys.check(scoped.headers)
            scoped.ticket = Ticket(state.key_uses.find(scoped.live.key))
        # Werkzeug takes a method that is not in capitals for the one that is.
        if rule is not None and scoped.method != scoped.method.upper():
            paths = cast(ServingApp, current_app).create_url_adapter(scoped)
            assert paths is not None, "there is a request"
            raise MethodNotAllowed(paths.allowed_methods())
        return None

    return admit


def _complete(state: ServerState) -> Callable[[Response], Awaitable[Response]]:
    """Return a function that counts an answer and adds the header fields of its dialect."""

    async def complete(response: Response) -> Response:
        scoped = current_request()
        # Only existing paths become labels, so that clients cannot create new ones.
        path = "unknown" if scoped.url_rule is None else scoped.url_rule.rule
        state.counts.answered[path, str(response.status_code)] += 1
        # The request's id, and the tokens that are left to its key.
        fields = find_dialect(scoped.path).list_fields
        response.headers.update(fields(str(scoped.id), scoped.ticket.use))
        return response

    return complete
