"""Answers all errors: each in the form of the dialect of its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import errno
from functools import partial
import logging
from typing import Final

from quart import Quart, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from ..errors import (
    DescriptorsFull,
    InternalError,
    ModelNotFound,
    PayloadTooLarge,
    RequestEnded,
    RequestError,
    TrioserveError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from ..http.route import OPENAI, Dialect
from ..http.scope import current_request
from ..http.wire.respond import make_error
from .routes import ROUTES

logger = logging.getLogger(__name__)

# The types of errors that both Werkzeug and this server raise, by status.
_TYPES: Final = {400: RequestError.code, 404: ModelNotFound.code}

# Of dialects besides OpenAI's.
_DIALECTS: Final = {
    path: route.dialect
    for route in ROUTES
    if route.dialect is not OPENAI
    for path in (*route.paths, route.dialect.base)
    if path is not None
}

# Paths of which only the paths below them are served.
_BASES: Final = ("/v1", "/v2")


class _FrameworkError(TrioserveError):
    """An error of Werkzeug's, such as an unknown path."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def answer_errors(app: Quart, *, is_for_people: bool) -> None:
    """Let an app answer all errors of its requests.

    Args:
      is_for_people: the app serves a page.
    """
    app.register_error_handler(TrioserveError, _respond_error)
    app.register_error_handler(
        HTTPException, partial(_respond_http_exception, is_for_people=is_for_people)
    )
    app.register_error_handler(Exception, _respond_unexpected)


def find_dialect(path: str) -> Dialect:
    """Return the dialect of a path, which may not exist."""
    for served, dialect in _DIALECTS.items():
        if path == served or path.startswith(f"{served}/"):
            return dialect
    return OPENAI


async def _respond_error(error: TrioserveError) -> Response:
    return _respond(error, _list_fields(error))


def _respond(error: TrioserveError, headers: dict[str, str]) -> Response:
    scoped = current_request()
    scoped.answer.note_error(error.code)
    if isinstance(error, (RequestError, Unavailable, RequestEnded)):
        _forget_frames(error)
    dialect = find_dialect(scoped.path)
    body = dialect.describe(error, str(scoped.id))
    status = dialect.choose_status(error)
    return make_error(error, status, headers, body).to_response()


def _list_fields(error: TrioserveError) -> dict[str, str]:
    headers = {}
    if isinstance(error, UnsupportedMediaType) and error.header == "Content-Encoding":
        # RFC 9110, 15.5.16: the header says that the coding was wrong, not the type.
        headers["Accept-Encoding"] = error.wanted
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RequestEnded):
        # OpenAI's and Anthropic's clients would send the request again.
        headers["X-Should-Retry"] = "false"
    return headers


async def _respond_http_exception(
    error: HTTPException, *, is_for_people: bool
) -> Response:
    status = error.code or 500
    if status == 413:
        limit = request.max_content_length or 0
        return await _respond_error(PayloadTooLarge(limit))
    kind = _TYPES.get(status) or error.name.replace(" ", "")
    message = _describe_http_exception(error, is_for_people)
    # Allow belongs to a 405. The other headers describe Werkzeug's HTML, which is not
    # sent.
    headers = {k: v for k, v in error.get_headers() if k == "Allow"}
    return _respond(_FrameworkError(status, kind, message), headers)


def _describe_http_exception(error: HTTPException, is_for_people: bool) -> str:
    """Return a message for programmers. Werkzeug's own is for users of browsers."""
    if isinstance(error, NotFound):
        if request.path.rstrip("/") in _BASES:
            return _explain_base(is_for_people)
        paths = current_app.create_url_adapter(request)
        assert paths is not None, "there is a request"
        meant = find_meant_path(request.path, paths.allowed_methods)
        hint = "" if meant is None else f" You may mean {meant}."
        return f"There is no such path; GET /openapi.json lists all paths.{hint}"
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        *others, last = sorted(error.valid_methods)
        taken = f"{', '.join(others)} and {last}" if others else last
        return f"This path takes {taken}, not {request.method}."
    return error.description or error.name


def _explain_base(is_for_people: bool) -> str:
    """Say where to go to somebody who has opened the base URL of clients in a browser."""
    page = "/ is a page for people, and /docs"
    rest = page if is_for_people else "GET /openapi.json"
    return (
        f"This is the base URL that clients of the API take; {rest} describes the API."
    )


async def _respond_unexpected(error: Exception) -> Response:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return await _respond_error(DescriptorsFull())
    logger.error("request %s failed", current_request().id, exc_info=error)
    _forget_frames(error)
    return await _respond_error(InternalError())


def _forget_frames(error: BaseException) -> None:
    """Free the objects in the frames of an error's traceback, such as a long prompt.

    An error from a thread and trio's frames in its traceback refer to each other, so they
    would stay until the garbage collector looks at old objects. The same holds for the
    error's context: the group that contained it, with the errors of other prompts.
    """
    others = (error.__context__, *getattr(error, "exceptions", ()))
    error.__traceback__ = error.__context__ = error.__cause__ = None
    for other in others:
        if other is not None:
            _forget_frames(other)


# Beginnings that clients leave out, repeat, or have from another server.
_BEGINNINGS: Final = frozenset({"api", "openai", "v1", "v2", "v3"})

# Paths of other servers, and mistakes, without such a beginning.
_OTHERS: Final = {
    # Ollama.
    "chat": "/v1/chat/completions",
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "tags": "/api/tags",
    "show": "/api/show",
    "ps": "/api/ps",
    # llama.cpp.
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "props": "/v1/models",
    "slots": "/v1/requests",
    # Text Generation Inference and SGLang.
    "generate_stream": "/v1/completions",
    "info": "/v1/models",
    "get_model_info": "/v1/models",
    "health_generate": "/readyz",
    "chat/completion": "/v1/chat/completions",
    "model": "/v1/models",
    "message": "/v1/messages",
    "response": "/v1/responses",
    "healthz": "/health",
    "ready": "/readyz",
    "live": "/livez",
}

# A longer path is not looked at, nor repeated.
_MAX_CHARACTERS: Final = 200


def find_meant_path(
    path: str, list_methods: Callable[[str], Iterable[str]]
) -> str | None:
    """Return a method and a path such as "POST /v1/completions", or None.

    Args:
      list_methods: returns the methods of a path; none if there is no such path.
    """
    if len(path) > _MAX_CHARACTERS:
        return None
    for meant in _list_paths(path):
        methods = {*list_methods(meant)} - {"HEAD", "OPTIONS"}
        # A handler may say that there is no such path, too.
        if methods and meant != path.rstrip("/"):
            return f"{' or '.join(sorted(methods))} {meant}"
    return None


def _list_paths(path: str) -> Iterator[str]:
    parts = [each for each in path.split("/") if each]
    while parts and parts[0].lower() in _BEGINNINGS:
        del parts[0]
    rest = "/".join(parts)
    if other := _OTHERS.get(rest.lower()):
        yield other
    if rest:
        for each in (rest, rest.lower()):
            yield f"/v1/{each}"
            yield f"/{each}"
