"""The types that the values of a parameter may have, by the schema of its tool."""

from __future__ import annotations

from trioserve.render.tools.tool_table import ToolTable

DEFINITIONS = {
    "place": {"properties": {"x": {"type": "number"}}},
    "either": {"oneOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, {"type": "boolean"}]},
}


def test_types_are_found_behind_references_and_cases() -> None:
    for part, types in (
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 1.5}, {"number"}),
        ({"type": "string", "enum": [1]}, {"string"}),
        ({"items": {}}, {"array"}),
        ({"$ref": "#/$defs/place"}, {"object"}),
        ({"$ref": "#/$defs/either", "description": "one"}, {"object", "null"}),
        ({"$ref": "#/$defs/circle"}, {"boolean"}),
        ({"$ref": "#/$defs/other"}, set()),
        ({"allOf": [{"$ref": "#/$defs/place"}]}, {"object"}),
        ({}, set()),
        (True, set()),
    ):
        for name, schema in (
            ("listed", {"properties": {"listed": part}, "additionalProperties": False}),
            ("other", {"properties": {}, "additionalProperties": part}),
        ):
            parameters = {"$defs": DEFINITIONS, **schema}
            function = {"name": "f", "parameters": parameters}
            table = ToolTable([{"type": "function", "function": function}])
            assert table.find_types("f", name) == types, part
        assert table.find_types("g", name) == set(), (part, types)
