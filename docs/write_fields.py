"""Write docs/fields.rst: what each endpoint takes, refuses and ignores.

    python docs/write_fields.py

The page comes from the structs of the requests, and from body.py of each folder of api/.
tests/docs/test_fields.py fails if the page is older than they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import json
from pathlib import Path
from typing import Any

import msgspec

from trioserve.api.decode.decoder import BodyDecoder
from trioserve.http.route import Route
from trioserve.server.openapi import openapi_document
from trioserve.server.routes import ROUTES

PAGE = Path(__file__).parent / "fields.rst"

# No client would notice a larger limit.
_NO_LIMIT = 2**31 - 1

_INTRODUCTION = """\
Fields of each endpoint
=======================

.. docs/write_fields.py writes this page. Do not change it by hand.

A field of a request's body is taken, refused or ignored. ``null`` is the same as no field.
:doc:`api` explains the fields; ``/openapi.json`` has the same types for programs.

* *Taken*: the field has the meaning that its API gives it. A wrong type, or a number out of its
  range, is refused with 400. Fields with a star are required.
* *Refused*: the server has nothing of the kind. A request with such a field gets a 400 that names
  it, unless the value is one of those listed, which ask for nothing. If none is listed, every
  value but ``null`` is refused.
* *Other servers*: the field belongs to another API. It is refused in the same way, with the
  advice that is listed.
* *Ignored*: the field is a label for the client's own use, or a hint.

A name that differs by one letter from a known field name, such as ``temprature``, is refused, and
so is ``maxTokens``. All other fields are unknown, and ignored; a body may have 128 of them.
``--log-level debug`` logs their names. The same holds for the fields of objects inside of a body.
The names of fields of objects in lists (for example messages) are not checked.
"""


def write_page() -> str:
    """Return the whole page."""
    schemas = _read_schemas()
    routes = [route for route in ROUTES if len(route.bodies) == 1]
    sections = [_write_section(route, schemas) for route in routes]
    return "\n\n".join([_INTRODUCTION, *sections])


def _read_schemas() -> dict[str, Any]:
    document = msgspec.json.encode(openapi_document("", ROUTES))
    schemas: dict[str, Any] = json.loads(document)["components"]["schemas"]
    return schemas


def _write_section(route: Route, schemas: dict[str, Any]) -> str:
    (decoder,) = route.bodies
    assert isinstance(decoder, BodyDecoder), "routes.py has no other bodies"
    schema = schemas[decoder.request_type.__name__]
    paths = ", ".join(route.documented_paths)
    title = f"{route.method} {paths}"
    taken = [
        [f"``{name}``" + " \\*" * (name in schema.get("required", ())), kind]
        for name, field in schema["properties"].items()
        if name not in decoder.ignored
        for kind in [_describe(field, schemas)]
    ]
    lines = [title, "-" * len(title), "", *_write_table(["Taken", "Type"], taken)]
    if decoder.refused:
        rows = [
            [f"``{name}``", ", ".join(map(_write_value, neutral))]
            for name, neutral in sorted(decoder.refused.items())
        ]
        lines += ["", *_write_table(["Refused", "Except"], rows)]
    if decoder.foreign:
        rows = [
            [f"``{name}``", "; except ".join(filter(None, [advice, values]))]
            for name, (advice, neutral) in sorted(decoder.foreign.items())
            for values in [", ".join(map(_write_value, neutral))]
        ]
        lines += ["", *_write_table(["Other servers", "Advice"], rows)]
    if decoder.ignored:
        names = ", ".join(f"``{name}``" for name in sorted(decoder.ignored))
        lines += ["", f"Ignored: {names}."]
    return "\n".join([*lines, ""])


def _write_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 40 60", ""]
    for first, second in [headings, *rows]:
        lines += [f"   * - {first}", f"     - {second}".rstrip()]
    return lines


def _write_value(value: object) -> str:
    return f"``{json.dumps(value)}``"


def _describe(field: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    kinds = dict.fromkeys(_list_kinds(field, schemas))
    return " or ".join(kinds) or "any JSON"


def _list_kinds(field: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in field:
        for branch in field["anyOf"]:
            yield from _list_kinds(branch, schemas)
    elif "$ref" in field:
        fields = schemas[field["$ref"].rpartition("/")[2]].get("properties", {})
        yield f"object with {', '.join(f'``{name}``' for name in fields)}"
    elif "enum" in field:
        yield ", ".join(map(_write_value, field["enum"]))
    elif field.get("type") == "array":
        inner = " or ".join(dict.fromkeys(_list_kinds(field.get("items", {}), schemas)))
        yield f"list of: {inner}" if inner else "list"
    elif field.get("type") != "null" and "type" in field:
        yield field["type"] + _describe_range(field)


def _describe_range(field: dict[str, Any]) -> str:
    low = field.get("minimum")
    high = field.get("maximum")
    has_low = low is not None and low > -_NO_LIMIT
    has_high = high is not None and high < _NO_LIMIT
    if has_low and has_high:
        return f" from {low:g} to {high:g}"
    if has_low:
        return f" of at least {low:g}"
    if "exclusiveMinimum" in field:
        most = f", at most {high:g}" if has_high else ""
        return f" above {field['exclusiveMinimum']:g}{most}"
    return ""


if __name__ == "__main__":
    PAGE.write_text(write_page())
