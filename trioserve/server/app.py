"""The ASGI app: it serves the routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import cast

from hypercorn.typing import HTTPScope
from quart import Response, current_app, request
from quart.wrappers import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.routing import BaseConverter, Map, MapAdapter

from ..engine.generation.engine import TokenEngine
from ..engine.pooling.engine import TensorEngine
from ..errors import DeadlineExceeded, HostNotAllowed, InvalidConfig
from ..http.connection import list_connections
from ..http.keys.key_use import Ticket
from ..http.route import Route
from ..http.scope import ScopedConnection, ScopedRequest, current_request
from ..http.state import ServerState
from ..http.streams.resumable import HEADER as LAST_EVENT
from ..http.time_limit import HEADER as TIMEOUT_HEADER
from ..http.wire.respond import EVENTS
from .admin.probes import AsgiApp, Probe, ProbesFirst
from .admin.resumed import resume_stream
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
    _set_up_paths(app.url_map)
    app.config["MAX_CONTENT_LENGTH"] = state.config.max_body_bytes
    # By default, quart ends a stream silently after a minute.
    app.config["RESPONSE_TIMEOUT"] = None
    for route in ROUTES:
        # One view for all paths of a handler, because quart finds views by name.
        name, view = route.handler.__name__, _bind(route, state)
        for path in route.paths:
            app.add_url_rule(path, name, view, methods=[route.method])
    answer_errors(app, is_for_people=state.config.ui)
    state.audit.list_connections = list_connections
    probes = _find_probes(state)
    app.before_request(_check_host(state))
    # Before the key is checked: browsers ask without it.
    app.before_request(_answer_preflight(state))
    app.before_request(_check_key(state, {*probes, *_list_documents(state)}))
    app.before_request(_check_method)
    app.after_request(_count_request(state))
    app.after_request(_add_fields)

    def find_engine() -> TokenEngine | TensorEngine | None:
        return None if state.engine is None else state.engine.engine

    async def audit_when_loaded() -> None:
        # Things that the load opens stay open without being leaks.
        if state.engine is None:
            await state.has_loaded.wait()
        await state.audit.run()

    async def start_background() -> None:
        await app.nursery.start(state.background.run)
        await app.nursery.start(state.resumable.tasks.run)
        app.nursery.start_soon(state.drop_old_responses)
        app.nursery.start_soon(state.keepalive.run)
        app.nursery.start_soon(state.unread.run)
        if state.siblings is None or state.siblings.is_first:
            app.nursery.start_soon(log_rates, find_engine)
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


def _set_up_paths(url_map: Map) -> None:
    url_map.converters["name"] = _NameConverter
    # A path with a slash at its end is served like the path without it, and not by a
    # redirect: clients do not send the body of a POST a second time.
    url_map.strict_slashes = False
    url_map.merge_slashes = False


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
        scoped.time_limit.take_header(scoped.headers.get(TIMEOUT_HEADER))
        try:
            with scoped.time_limit.until_answer(scoped.progress):
                if takes_up and LAST_EVENT in scoped.headers:
                    return resume_stream(state, scoped)
                if route.bodies:
                    await scoped.ticket.admit(state.siblings)
                    scoped.resources.enter_context(scoped.ticket.hold())
                return await route.handler(state, scoped)
        except DeadlineExceeded:
            scoped.cancellation.begin(scoped.progress.phase)
            raise
        raise AssertionError("the block returns or raises")

    return handle


def _check_host(state: ServerState) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        # No websocket comes here (connection/http1.py).
        scope = cast(HTTPScope, current_request().scope)
        name = state.hosts.find_foreign(scope)
        if name is not None:
            raise HostNotAllowed(name, takes_keys=state.hosts.takes_keys)

    return check


def _answer_preflight(
    state: ServerState,
) -> Callable[[], Awaitable[Response | None]]:
    async def answer() -> Response | None:
        asked = current_request()
        fields = state.cors.answer_preflight(asked.method, asked.headers)
        return None if fields is None else Response(b"", 200, fields)

    return answer


def _check_key(
    state: ServerState, open_paths: Collection[str]
) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        # Before the body is read, and for unknown paths, too: strangers learn nothing.
        rule = request.url_rule
        if rule is None or rule.rule not in open_paths:
            scoped = current_request()
            scoped.live.key = state.keys.check(scoped.headers)
            scoped.ticket = Ticket(state.key_uses.find(scoped.live.key))

    return check


async def _check_method() -> None:
    """Refuse a method that is not in capitals, which Werkzeug takes for the one that is."""
    scoped = current_request()
    if scoped.url_rule is not None and scoped.method != scoped.method.upper():
        paths = cast(ServingApp, current_app).create_url_adapter(scoped)
        assert paths is not None, "there is a request"
        raise MethodNotAllowed(paths.allowed_methods())


def _count_request(state: ServerState) -> Callable[[Response], Awaitable[Response]]:
    async def count(response: Response) -> Response:
        # Only existing paths become labels, so that clients cannot create new ones.
        rule = request.url_rule
        path = "unknown" if rule is None else rule.rule
        state.counts.answered[path, str(response.status_code)] += 1
        return response

    return count


async def _add_fields(response: Response) -> Response:
    """Add the header fields of the dialect: the request's id, the tokens left to its key."""
    scoped = current_request()
    dialect = find_dialect(scoped.path)
    response.headers.update(dialect.list_fields(str(scoped.id), scoped.ticket.use))
    return response
