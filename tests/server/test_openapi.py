"""The OpenAPI document is complete, consistent, and equal to the decoded structs."""

from __future__ import annotations

from collections.abc import Iterator
import json
from typing import Any

import msgspec
import pytest

from trioserve.api.anthropic.routes import ANTHROPIC
from trioserve.http.route import Route
from trioserve.server.openapi import openapi_document
from trioserve.server.routes import ROUTES
from trioserve.types.sampling import EXCLUSIVE, SAMPLING_BOUNDS

DOCUMENT: Any = json.loads(msgspec.json.encode(openapi_document("1.2.3", ROUTES)))
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (path, method, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
]
POSTS = [
    (path, route)
    for route in ROUTES
    for path in route.documented_paths
    if len(route.bodies) == 1
]


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from walk(child)


def numbers(field: dict[str, Any]) -> list[dict[str, Any]]:
    branches = field.get("anyOf", [field])
    return [branch for branch in branches if branch["type"] in ("integer", "number")]


def test_it_is_of_version_3_1_and_names_the_servers() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"] == {"title": "trioserve", "version": "1.2.3"}


def test_it_has_every_route_and_no_other() -> None:
    routes = {
        (path, route.method) for route in ROUTES for path in route.documented_paths
    }
    assert {(path, method.upper()) for path, method, _ in OPERATIONS} == routes


def test_every_reference_resolves() -> None:
    references = [node["$ref"] for node in walk(DOCUMENT) if "$ref" in node]
    assert references
    for reference in references:
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        assert name in SCHEMAS


def test_every_schema_is_referred_to() -> None:
    references = {node["$ref"] for node in walk(DOCUMENT) if "$ref" in node}
    assert references == {f"#/components/schemas/{name}" for name in SCHEMAS}


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_operation_has_described_responses(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert "200" in operation["responses"]
    for response in operation["responses"].values():
        assert response["description"]


@pytest.mark.parametrize(("path", "route"), POSTS)
def test_every_post_takes_its_request_and_lists_its_errors(
    path: str, route: Route
) -> None:
    request_type = route.bodies[0].request_type
    operation = DOCUMENT["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith(f"/{request_type.__name__}")
    assert set(SCHEMAS[request_type.__name__]["properties"]) == set(
        request_type.__struct_fields__
    )
    errors = {s: r for s, r in operation["responses"].items() if s != "200"}
    overloaded = "529" if route.dialect is ANTHROPIC else "503"
    assert set(errors) == {
        *("400", "401", "404", "408", "413", "415", "429", "500", "504", overloaded),
        *route.errors,
    }
    for response in errors.values():
        body = response["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{route.dialect.error.__name__}"}


def test_a_path_for_several_requests_takes_each_of_them() -> None:
    body = DOCUMENT["paths"]["/invocations"]["post"]["requestBody"]
    schemas = body["content"]["application/json"]["schema"]["anyOf"]
    names = [each["$ref"].rpartition("/")[2] for each in schemas]
    assert names[:2] == ["ChatRequest", "CompletionRequest"] and len(names) == 7


@pytest.mark.parametrize("name", SAMPLING_BOUNDS)
def test_bounds_are_those_that_are_checked(name: str) -> None:
    low, high = SAMPLING_BOUNDS[name]
    field = SCHEMAS["CompletionRequest"]["properties"][name]
    assert numbers(field)
    for branch in numbers(field):
        lowest = "exclusiveMinimum" if name in EXCLUSIVE else "minimum"
        assert (branch[lowest], branch["maximum"]) == (low, high)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("top_logprobs", SAMPLING_BOUNDS["logprobs"]),
        # A chat has no echo that could be all of its answer.
        ("max_tokens", (1, 2**31 - 1)),
        ("max_completion_tokens", (1, 2**31 - 1)),
    ],
)
def test_bounds_hold_for_chats_names_too(name: str, bounds: tuple[int, int]) -> None:
    (branch,) = numbers(SCHEMAS["ChatRequest"]["properties"][name])
    assert (branch["minimum"], branch["maximum"]) == bounds


def test_chats_logprobs_are_a_flag() -> None:
    assert numbers(SCHEMAS["ChatRequest"]["properties"]["logprobs"]) == []


def test_streams_are_described() -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "text/event-stream"}


def test_vectors_in_bytes_are_described() -> None:
    for path in ("/v1/embeddings", "/pooling"):
        content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
        assert set(content) == {"application/json", "application/octet-stream"}
