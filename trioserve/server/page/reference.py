"""The document at /docs: the API in words, made from its OpenAPI document.

It can be read without its script, reference.js, which adds the filter, the buttons and the
forms that send a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import itertools
import re
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
import msgspec

from .document import Document
from .parts import join_parts

# Parts of an OpenAPI document; JSON has no narrower type.
_Json = Mapping[str, Any]

_PREFIX: Final = "#/components/schemas/"

_MANY: Final = 2**31 - 1

# A line of a docstring's "Args:" that begins the words about one or several fields.
_ABOUT: Final = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation as the template shows it.

    Attributes:
      paths: all paths of the operation; the example asks the first one.
      anchor: the end of its address in the document.
      request: the schema of the body; None without a body.
      example: a body as JSON; empty without a body.
      curl: a command that asks it.
    """

    method: str
    paths: tuple[str, ...]
    anchor: str
    summary: str
    parameters: tuple[_Json, ...]
    request: _Json | None
    answers: _Json
    errors: _Json
    example: str
    curl: str


def render_reference(document: Mapping[str, object]) -> Document:
    """Write an OpenAPI document as a page."""
    described: Any = document
    environment = Environment(
        loader=PackageLoader(__package__, "browser"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    root_path = _find_root_path(described)
    environment.filters.update(
        as_json=_write_json,
        bounds=_describe_bounds,
        schema_name=_name_schema,
        about=_split_description,
        below_root=lambda path: path.removeprefix(root_path),
    )
    template = environment.get_template("reference.html")
    html = template.render(
        version=described["info"]["version"],
        root_path=root_path,
        endpoints=list(_list_endpoints(described)),
        schemas=described["components"]["schemas"],
    )
    return Document(join_parts(html))


def _find_root_path(document: _Json) -> str:
    return "".join(each["url"] for each in document.get("servers", []))


def _list_endpoints(document: _Json) -> Iterator[Endpoint]:
    """List the operations. Neighbours that differ in the path alone are one."""
    root_path = _find_root_path(document)
    operations = (
        (method.upper(), operation, f"{root_path}{path}")
        for path, item in document["paths"].items()
        for method, operation in item.items()
    )
    for (method, operation), group in itertools.groupby(
        operations, key=lambda each: each[:2]
    ):
        yield _describe(tuple(path for _, _, path in group), method, operation)


def _describe(paths: tuple[str, ...], method: str, operation: _Json) -> Endpoint:
    path = paths[0]
    responses = dict(operation["responses"])
    success = responses.pop("200")
    body = operation.get("requestBody")
    (content,) = body["content"].values() if body else (None,)
    return Endpoint(
        method=method,
        paths=paths,
        anchor=re.sub(r"[^a-z0-9]+", "-", f"{method} {path}".lower()).strip("-"),
        summary=operation["summary"],
        parameters=tuple(operation.get("parameters", ())),
        request=content and content["schema"],
        answers=success.get("content", {}),
        errors=responses,
        example=_write_json(content["example"], indent=2) if content else "",
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


def _split_description(schema: _Json) -> tuple[str, Mapping[str, str]]:
    """Split the docstring of a struct into its own words and the words about its fields."""
    head, _, about = schema.get("description", "").partition("Args:")
    words: list[tuple[str, list[str]]] = []
    for line in filter(None, map(str.strip, about.splitlines())):
        if (found := _ABOUT.match(line)) and _are_fields(found[1], schema):
            words.append((found[1], [found[2]]))
        elif words:
            words[-1][1].append(line)
    fields: dict[str, list[str]] = {}
    for names, lines in words:
        for name in names.split(", "):
            fields.setdefault(name, []).extend(lines)
    return head.strip(), {name: " ".join(lines) for name, lines in fields.items()}


def _are_fields(names: str, schema: _Json) -> bool:
    return all(name in schema.get("properties", {}) for name in names.split(", "))


def _describe_bounds(schema: _Json) -> str:
    """Return the range of a number. The ends of a type's own range say nothing."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        return f" above {above:g}" + ("" if high is None else f" and up to {high:g}")
    if high is not None and high < _MANY:
        return f" from {low:g} to {high:g}"
    return "" if low is None or low <= -_MANY else f" of at least {low:g}"


def _write_json(value: object, indent: int = 0) -> str:
    # With a space behind commas and colons, lines can be broken there.
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
