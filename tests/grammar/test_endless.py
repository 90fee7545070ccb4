"""Schemas that no finite value matches are found, and no others."""

from __future__ import annotations

from collections.abc import Iterator
import json
import random
from typing import Any

import jsonschema
import pytest

from trioserve.errors import InvalidParameter
from trioserve.grammar import endless
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.endless import is_endless
from trioserve.types.structured import StructuredOutput

SELF = {"$ref": "#"}
NODE = {"type": "object", "properties": {"a": SELF}, "required": ["a"]}
LIST = {"type": "array", "items": SELF}
LEFT, RIGHT = ({"$ref": f"#/$defs/{name}"} for name in ("left", "right"))


def hold(part: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": part}, "required": ["a"]}


def test_a_schema_whose_values_would_never_end_is_refused() -> None:
    for schema in (
        SELF,
        NODE,
        {"anyOf": [NODE, {**LIST, "minItems": 1}]},
        {"oneOf": [NODE]},
        {"allOf": [{"type": ["object", "array"]}, hold(SELF)]},
        {"type": "object", "allOf": [{"properties": {"a": SELF}, "required": ["a"]}]},
        {"type": "array", "prefixItems": [{}, SELF], "minItems": 2},
        {"type": "array", "items": [SELF], "minItems": 1},
        {"type": "object", "additionalProperties": SELF, "required": ["x"]},
        {"type": "object", "additionalProperties": SELF, "minProperties": 1},
        {**LEFT, "$defs": {"left": hold(RIGHT), "right": hold(LEFT)}},
        {**LEFT, "definitions": {}, "$defs": {"left": {"anyOf": [hold(LEFT)]}}},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": NODE}},
        {"type": "array", "minItems": 1, "items": {"allOf": [True, SELF]}},
        {"enum": [[], {}], "type": "object", **hold(SELF)},
    ):
        assert is_endless(schema)


def test_a_schema_with_a_value_is_taken() -> None:
    for schema in (
        {},
        {"properties": {"a": SELF}, "required": ["a"]},
        {**NODE, "type": ["object", "null"]},
        {**NODE, "required": []},
        {"anyOf": [NODE, {"type": "null"}]},
        hold({"anyOf": [{"type": "null"}, SELF]}),
        LIST,
        {**LIST, "minItems": 1, "prefixItems": [{"type": "string"}]},
        {**LEFT, "$defs": {"left": hold(RIGHT), "right": {"anyOf": [LEFT, {}]}}},
        {"type": "object", "additionalProperties": SELF},
        {"type": "object", "patternProperties": {"x": SELF}, "required": ["x"]},
        {"$ref": "#/$defs/gone"},
        {"$ref": "http://localhost/x"},
        {"const": {"a": 1}},
        {"$defs": {"unused": NODE}, "type": "string"},
    ):
        assert not is_endless(schema)


def draw_schema(draw: random.Random, depth: int, *, is_inner: bool = False) -> Any:
    """Draw a schema; references stand within objects and lists, so validators end."""

    def child(*, is_inner: bool = True) -> Any:
        return draw_schema(draw, depth - 1, is_inner=is_inner)

    if depth == 0 or draw.random() < 0.3:
        references = [SELF, LEFT, RIGHT] * 2 if is_inner else []
        return dict(draw.choice([*references, {"type": "null"}, {}]))
    schema = draw.choice(
        [
            lambda: {"anyOf": [child(is_inner=False), child(is_inner=False)]},
            lambda: {"allOf": [child(is_inner=False), child(is_inner=False)]},
            lambda: {"prefixItems": [child()], "items": child(), "minItems": 2},
            lambda: {"items": child(), "minItems": draw.choice([0, 1])},
            lambda: {"properties": {"a": child()}, "required": ["a"]},
            lambda: {"additionalProperties": child(), "required": ["b"]},
            lambda: {"additionalProperties": child(), "minProperties": 1},
        ]
    )()
    if draw.random() < 0.8:
        schema["type"] = draw.choice(["object", "array", ["object", "array"]])
    return schema


def list_values() -> Iterator[Any]:
    values: list[Any] = [None, 1, "x", True]
    for _ in range(3):
        values = values[:4] + [
            *([], {}),
            *([value] for value in values),
            *([value, value] for value in values),
            *({"a": value} for value in values),
            *({"b": value} for value in values),
        ]
        values = values[:60]
    return iter(values)


def test_a_schema_that_is_refused_matches_no_small_value() -> None:
    values = [*list_values()]
    refused = 0
    for seed in range(150):
        draw = random.Random(seed)
        root, left, right = (draw_schema(draw, 2) for _ in range(3))
        schema = {**root, "$defs": {"left": left, "right": right}}
        if is_endless(schema):
            refused += 1
            is_valid = jsonschema.Draft202012Validator(schema).is_valid
            assert not any(map(is_valid, values)), schema
    assert 10 < refused < 140


def test_long_chains_and_many_circles_take_bounded_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[None] = []
    find = endless._find_types

    def count(*arguments: Any) -> int:
        calls.append(None)
        return find(*arguments)

    monkeypatch.setattr(endless, "_find_types", count)
    size = 200
    for step in (1, -1):
        # Each definition needs the next one, and may also be the one before.
        definitions: dict[str, Any] = {
            f"d{i}": {
                "anyOf": [hold({"$ref": f"#/$defs/d{(i + step) % size}"})] * 2
                + [hold({"$ref": f"#/$defs/d{(i - step) % size}"})]
            }
            for i in range(size)
        }
        schema = {"$ref": "#/$defs/d0", "$defs": definitions}
        assert is_endless(schema)
        definitions[f"d{size // 2}"] = {"type": "null"}
        is_endless(schema)
    # 8 parts for a definition, and as many rounds.
    assert len(calls) < 4 * 8 * size * 17


@pytest.mark.parametrize(
    ("structure", "param"),
    [
        (StructuredOutput(kind="json", value=json.dumps(NODE), param="x"), "x"),
        (
            StructuredOutput(
                kind="structural_tag",
                value=json.dumps(
                    {
                        "structures": [{"begin": "<", "schema": NODE, "end": ">"}],
                        "triggers": ["<"],
                    }
                ),
            ),
            "structured_outputs.structures[0].schema",
        ),
        (
            StructuredOutput(
                kind="grammar",
                value=f"start: %json {json.dumps(NODE)}",
                parts=(("tools[0].function.parameters", json.dumps(NODE)),),
            ),
            "tools[0].function.parameters",
        ),
    ],
)
def test_the_field_of_an_endless_schema_is_named(
    structure: StructuredOutput, param: str
) -> None:
    with pytest.raises(InvalidParameter, match="#: no value matches: ") as caught:
        compile_structure(structure)
    assert caught.value.param == param
