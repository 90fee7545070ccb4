"""One endpoint of the API: how it is served, in which dialect, and how it is described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
import re
from types import UnionType
from typing import Final, Literal, Protocol

import msgspec
from quart import Response

from ..errors import TrioserveError
from .keys.key_use import KeyUse
from .scope import ScopedRequest
from .state import ServerState
from .wire.error_body import ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The errors and the header fields of one API.

    Attributes:
      error: the struct of all errors.
      describe: makes this struct of an error and the id of its request.
      list_fields: returns header fields of any answer, by the id and the key of its request.
      statuses: the statuses that replace the statuses of this server's errors.
      base: a path below which all errors have this form, also of paths that do not exist.
    """

    error: type[msgspec.Struct]
    describe: Callable[[TrioserveError, str], msgspec.Struct]
    list_fields: Callable[[str, KeyUse], Mapping[str, str]]
    statuses: Mapping[int, int] = field(default_factory=dict)
    base: str | None = None

    def choose_status(self, error: TrioserveError) -> int:
        return self.statuses.get(error.status, error.status)


def _list_fields(request_id: str, use: KeyUse) -> Mapping[str, str]:
    """Return x-ratelimit-*; nothing if the key has no limit of tokens.

    OpenAI's API also counts the requests of a minute. This server has no such limit.
    """
    if (limit := use.key.tokens_per_minute) is None:
        return {}
    return {
        "x-ratelimit-limit-tokens": str(limit),
        "x-ratelimit-remaining-tokens": str(use.num_left),
        "x-ratelimit-reset-tokens": f"{use.measure_reset(limit):.3f}s",
    }


OPENAI: Final = Dialect(
    error=ErrorBody,
    describe=lambda error, request_id: ErrorBody.of(error),
    list_fields=_list_fields,
)


Handler = Callable[[ServerState, ScopedRequest], Awaitable[Response]]

# A part of a path that the client chooses, such as <name:model>.
_PARAMETER = re.compile(r"<\w+:(\w+)>")


class Body(Protocol):
    """The decoder of a kind of body."""

    @property
    def request_type(self) -> type[msgspec.Struct]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One row of a table of routes, such as api/chat/routes.py.

    Attributes:
      paths: as Werkzeug writes them. All of them lead to the same handler.
      handler: a Probe is also called without quart, and has no parameters.
      summary: one sentence that OpenAPI shows; docs/api.rst begins with it, too.
      bodies: the decoders of its bodies; several if it takes bodies of other endpoints.
      example: a body that shows what the endpoint needs.
      answers: the struct or type of a successful answer, by content type. None means
        bytes, or JSON without a fixed shape. For event streams, it is the data of one
        event, or the union of all kinds of events.
      query: the meanings of the parameters of the query, by name.
      errors: the meanings of errors, by status, besides the errors of all bodies.
      dialect: writes all errors of its paths, and of paths below them.
      bounds: the ranges of numbers that differ from SAMPLING_BOUNDS, by field.
      is_document: it is for people, whose browsers show no key. It has nothing of a
        client, and --no-ui turns it off.
    """

    method: Literal["GET", "POST", "DELETE"]
    paths: tuple[str, ...]
    handler: Handler
    summary: str
    bodies: tuple[Body, ...] = ()
    example: Mapping[str, object] = field(default_factory=dict)
    answers: Mapping[str, type | UnionType | None] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = OPENAI
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_document: bool = False

    @property
    def documented_paths(self) -> tuple[str, ...]:
        """The paths as OpenAPI writes them: /v1/models/{model}."""
        return tuple(_PARAMETER.sub(r"{\1}", path) for path in self.paths)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parts of the path that the client chooses."""
        return tuple(_PARAMETER.findall(self.paths[0]))
