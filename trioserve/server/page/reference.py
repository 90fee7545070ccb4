"""The document at /docs: the API in words, made from its OpenAPI document.

It has no scripts. A reader folds and finds by what the browser itself does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import re
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
import msgspec

from .document import Document

# Parts of an OpenAPI document; JSON has no narrower type.
_Json = Mapping[str, Any]

_PREFIX: Final = "#/components/schemas/"

_MANY: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation as the template shows it.

    Attributes:
      anchor: the end of its address in the document.
      request: the schema of the body; None without a body.
      curl: a command that asks it.
    """

    method: str
    path: str
    anchor: str
    summary: str
    parameters: tuple[_Json, ...]
    request: _Json | None
    answers: _Json
    errors: _Json
    curl: str


def render_reference(document: Mapping[str, object]) -> Document:
    """Write an OpenAPI document as a page."""
    described: Any = document
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        as_json=_write_json, bounds=_describe_bounds, schema_name=_name_schema
    )
    template = environment.get_template("reference.html")
    html = template.render(
        version=described["info"]["version"],
        root_path=_find_root_path(described),
        endpoints=list(_list_endpoints(described)),
        schemas=described["components"]["schemas"],
    )
    return Document(html)


def _find_root_path(document: _Json) -> str:
    return "".join(each["url"] for each in document.get("servers", []))


def _list_endpoints(document: _Json) -> Iterator[Endpoint]:
    root_path = _find_root_path(document)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield _describe(f"{root_path}{path}", method.upper(), operation)


def _describe(path: str, method: str, operation: _Json) -> Endpoint:
    responses = dict(operation["responses"])
    success = responses.pop("200")
    body = operation.get("requestBody")
    (content,) = body["content"].values() if body else (None,)
    return Endpoint(
        method=method,
        path=path,
        anchor=re.sub(r"[^a-z0-9]+", "-", f"{method} {path}".lower()).strip("-"),
        summary=operation["summary"],
        parameters=tuple(operation.get("parameters", ())),
        request=content and content["schema"],
        answers=success.get("content", {}),
        errors=responses,
        curl=_write_curl(path, method, content and content["example"]),
    )


def _write_curl(path: str, method: str, example: _Json | None) -> str:
    """Write a command for a shell. KEY and the parts of paths are for the reader to fill."""
    address = f"$URL{re.sub(r'{(.*?)}', lambda found: found[1].upper(), path)}"
    if example is None:
        flag = "" if method == "GET" else f"-X {method} "
        return f'curl {flag}"{address}"'
    # No example has the quote in which the shell reads it.
    return (
        f"curl \"{address}\" -H 'content-type: application/json' \\\n"
        f"  -d '{_write_json(example)}'"
    )


def _name_schema(reference: str) -> str:
    return reference.removeprefix(_PREFIX)


def _describe_bounds(schema: _Json) -> str:
    """Return the range of a number. The ends of a type's own range say nothing."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        return f" above {above:g}" + ("" if high is None else f" and up to {high:g}")
    if high is not None and high < _MANY:
        return f" from {low:g} to {high:g}"
    return "" if low is None or low <= -_MANY else f" of at least {low:g}"


def _write_json(value: object) -> str:
    # With a space behind commas and colons, lines can be broken there.
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
