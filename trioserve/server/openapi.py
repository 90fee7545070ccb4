"""The OpenAPI 3.1 document, made from the table of endpoints and their structs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import itertools
from types import UnionType
from typing import Any, Final, get_args

import msgspec

from ..frontend import MAX_THINKING_TOKEN_BUDGET
from ..http.route import Route
from ..http.wire.respond import JSON
from ..types.sampling import EXCLUSIVE, SAMPLING_BOUNDS

# Parts of a document; JSON has no narrower type.
_Json = dict[str, Any]

_REF_TEMPLATE: Final = "#/components/schemas/{name}"

_SOME_TOKENS: Final = (1, SAMPLING_BOUNDS["max_tokens"][1])

# The ranges of numbers, by the name of the request's field. SamplingParams has other
# names for some of the fields, and does not have others.
_BOUNDS: Final[dict[str, tuple[float, float]]] = SAMPLING_BOUNDS | {
    "max_tokens": _SOME_TOKENS,
    "top_logprobs": SAMPLING_BOUNDS["logprobs"],
    "max_completion_tokens": _SOME_TOKENS,
    "max_output_tokens": _SOME_TOKENS,
    "thinking_token_budget": (0, MAX_THINKING_TOKEN_BUDGET),
}

# The errors of all endpoints that take a body. Their classes are in errors/.
_BODY_ERRORS: Final[Mapping[str, str]] = {
    "400": "The body is not JSON, or a field is wrong; the error names the field.",
    "401": "The server needs a key, and the request has none that it knows.",
    "404": "The model is not served here.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON, or is compressed.",
    "429": "Too many requests wait; Retry-After says when to try again.",
    "500": "The engine failed.",
    "503": "The server is stopping, or has no memory or threads left for this request.",
    "504": "The request has used up its time before its answer began.",
}

_PARAMETERS: Final[Mapping[str, str]] = {
    "model": "The model's name, which may contain slashes.",
    "response_id": "The id of a response.",
    "request_id": "The id of a request, as its answer has it in x-request-id.",
}


def openapi_document(
    version: str, routes: Sequence[Route], root_path: str | None = None
) -> dict[str, object]:
    """Describe the API as OpenAPI 3.1.

    Args:
      version: the server's own version.
      routes: all endpoints.
      root_path: the path before all paths.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "trioserve", "version": version},
        # Relative to the address of the document.
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "paths": _describe_paths(routes),
        # The server may have no keys.
        "security": [{}, {"key": []}],
        "components": {
            "schemas": _describe_schemas(routes),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_paths(routes: Sequence[Route]) -> _Json:
    paths: _Json = {}
    for route in routes:
        for path in route.documented_paths:
            operation = _describe_operation(route)
            paths.setdefault(path, {})[route.method.lower()] = operation
    return paths


def _describe_operation(route: Route) -> _Json:
    success: _Json = {"description": "Success"}
    if route.answers:
        success["content"] = {
            content_type: {} if answer is None else _describe_content(answer)
            for content_type, answer in route.answers.items()
        }
    errors = {
        status: {"description": text, "content": _json(route.dialect.error)}
        for status, text in _list_errors(route).items()
    }
    operation: _Json = {
        "summary": route.summary,
        "responses": {"200": success, **errors},
    }
    if route.bodies:
        references = [_refer_to(body.request_type) for body in route.bodies]
        schema = references[0] if len(references) == 1 else {"anyOf": references}
        content = {JSON: {"schema": schema, "example": route.example}}
        operation["requestBody"] = {"required": True, "content": content}
    parameters = [
        *map(_describe_parameter, route.parameters),
        *itertools.starmap(_describe_query, route.query.items()),
    ]
    if parameters:
        operation["parameters"] = parameters
    return operation


def _list_errors(route: Route) -> Mapping[str, str]:
    if not route.bodies:
        return route.errors
    errors = {**_BODY_ERRORS, **route.errors}
    for status, own in route.dialect.statuses.items():
        errors[str(own)] = errors.pop(str(status))
    return errors


def _describe_parameter(name: str) -> _Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PARAMETERS[name],
        "schema": {"type": "string"},
    }


def _describe_query(name: str, meaning: str) -> _Json:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": meaning,
        "schema": {"type": "string"},
    }


def _json(struct: type[msgspec.Struct]) -> _Json:
    return {JSON: _describe_content(struct)}


def _describe_content(answer: type | UnionType) -> _Json:
    """Refer to structs, or describe another type."""
    if isinstance(answer, UnionType):
        return {"schema": {"anyOf": [_refer_to(each) for each in get_args(answer)]}}
    if issubclass(answer, msgspec.Struct):
        return {"schema": _refer_to(answer)}
    return {"schema": msgspec.json.schema(answer)}


def _refer_to(struct: type) -> _Json:
    return {"$ref": _REF_TEMPLATE.format(name=struct.__name__)}


def _describe_schemas(routes: Sequence[Route]) -> _Json:
    _, schemas = msgspec.json.schema_components(
        tuple(_list_structs(routes)),
        ref_template=_REF_TEMPLATE,
        schema_hook=_describe_object,
    )
    for route in routes:
        # The path that takes bodies of others has no bounds of its own.
        if len(route.bodies) == 1:
            _bound_fields(
                schemas[route.bodies[0].request_type.__name__]["properties"],
                {**_BOUNDS, **route.bounds},
            )
    return schemas


def _list_structs(routes: Sequence[Route]) -> Iterator[type[msgspec.Struct]]:
    for route in routes:
        yield from (body.request_type for body in route.bodies)
        for each in (route.dialect.error, *route.answers.values()):
            for struct in get_args(each) or (each,):
                if struct is not None and issubclass(struct, msgspec.Struct):
                    yield struct


def _describe_object(type_: type) -> _Json:
    if type_ is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _bound_fields(fields: _Json, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Add the ranges that SamplingParams checks."""
    for name, field in fields.items():
        if name in bounds:
            lowest = "exclusiveMinimum" if name in EXCLUSIVE else "minimum"
            low, high = bounds[name]
            _bound(field, {lowest: low, "maximum": high})


def _bound(field: _Json, limits: Mapping[str, float]) -> None:
    """Narrow the branches of a field's schema that are numbers."""
    for branch in field.get("anyOf", [field]):
        # The logprobs of a chat are a flag with the name of a number.
        if branch.get("type") in ("integer", "number"):
            branch.update(limits)
