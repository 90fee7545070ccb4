"""Forced calls whose arguments are not JSON: the schema holds for what scanners read."""

from __future__ import annotations

import json
import random
from typing import Any

from jsonschema import Draft202012Validator
from llguidance import LLMatcher
import pytest

from trioserve.errors import InvalidParameter
from trioserve.render.tools.families import find_scanner
from trioserve.render.tools.forced_calls import write_forced_calls
from trioserve.render.tools.tool_table import ToolTable

from .test_forced_calls import decode, encode, find_tags, match, walk

FAMILIES = [
    *("qwen3_coder", "glm4", "minimax_m2", "deepseek_v32"),
    *("gemma4", "functiongemma", "llama4_pythonic", "lfm2"),
]
TAGGED = FAMILIES[:4]
GEMMA = FAMILIES[4:6]

SHORT = {"type": "string", "maxLength": 3}
SCHEMAS: dict[str, dict[str, Any]] = {
    "texts": {
        "properties": {
            "free": {"type": "string"},
            "coded": {"type": "string", "pattern": "^[A-Z]{2}/\\d$"},
            "part": {"type": "string", "pattern": "ab", "maxLength": 4},
            "kind": {"enum": ["a", "b\n c", "5"]},
            "fixed": {"const": "x"},
        },
        "required": ["free", "part"],
    },
    "scalars": {
        "properties": {
            "days": {"type": "integer", "minimum": 2, "maximum": 40},
            "share": {"type": "number"},
            "on": {"type": "boolean"},
            "one": {"enum": [1, 2.5]},
        },
        "required": ["share", "on"],
    },
    "perhaps": {
        "properties": {
            "a": {"type": ["string", "null"], "maxLength": 2},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "c": {
                "anyOf": [{"type": "string", "enum": ["x", "null"]}, {"type": "null"}]
            },
            "d": {"oneOf": [SHORT, {"type": "boolean"}]},
            "e": {"enum": ["x", "false", True]},
        },
    },
    "nested": {
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"name": SHORT, "at": {"type": "integer", "maximum": 3}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "properties": {
            "place": {"$ref": "#/$defs/place", "description": "one"},
            "places": {
                **{"type": "array", "items": {"$ref": "#/$defs/place"}},
                **{"minItems": 1, "maxItems": 2},
            },
            "home": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
            "tags": {"type": "array", "items": SHORT, "maxItems": 2},
        },
        "required": ["place"],
        "additionalProperties": False,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["left"],
                "additionalProperties": False,
            },
        },
        "properties": {"root": {"$ref": "#/$defs/node"}},
        "required": ["root"],
    },
    "numbers": {
        "properties": {"a": SHORT},
        "additionalProperties": {"type": "integer", "maximum": 7},
    },
    "anything": {},
    "nothing": {"properties": {}, "additionalProperties": False},
}


def make_tools(**schemas: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", **schema}},
        }
        for name, schema in schemas.items()
    ]


def write(family: str, schema: dict[str, Any], *, has_tags: bool = True) -> str:
    form = find_scanner(family).choose_form("")
    tags = find_tags(family) if has_tags else {}
    return LLMatcher.grammar_from_lark(
        write_forced_calls(
            form, make_tools(f=schema), tags, names=frozenset("f"), takes_one=True
        )
    )


def read(family: str, schema: dict[str, Any], written: str) -> Any:
    """Return the arguments of the one call in a text, which has nothing else."""
    scanner = find_scanner(family)(ToolTable(make_tools(f=schema)), calls_only=True)
    text, calls = scanner.push(written, is_last=True)
    assert not text.strip() and [call.name for call in calls] == ["f"], written
    return json.loads(calls[0].arguments)


@pytest.mark.parametrize(
    ("family", "name", "has_tags"),
    [
        # One family of each kind of form.
        *(
            (family, name, False)
            for family in ("qwen3_coder", "gemma4", "llama4_pythonic")
            for name in SCHEMAS
        ),
        *(
            (family, name, True)
            for family in FAMILIES
            for name in ("texts", "perhaps", "nested")
        ),
    ],
)
def test_what_a_grammar_allows_matches_the_schema(
    family: str, name: str, has_tags: bool
) -> None:
    schema = SCHEMAS[name]
    matcher = match(write(family, schema, has_tags=has_tags), has_tags=has_tags)
    validator = Draft202012Validator({"type": "object", **schema})
    seen = set()
    for seed in range(16):
        if seed > 1 and (len(seen) > 1 or name == "nothing"):
            break
        draw = random.Random(f"{family} {name} {seed}")
        ids = walk(matcher.deep_copy(), draw, has_tags=has_tags)
        written = decode(ids)
        arguments = read(family, schema, written)
        validator.validate(arguments)
        seen.add(json.dumps(arguments))
    assert len(seen) > 1 or name == "nothing"


def write_call(family: str, arguments: str) -> str:
    form = find_scanner(family).choose_form("")
    return f"{form.first}{form.before}f{form.between}{arguments}{form.after}{form.last}"


def allows(family: str, schema: dict[str, Any], arguments: str) -> bool:
    """Return whether a grammar allows a call with the written arguments."""
    ids = encode(write_call(family, arguments), has_tags=False)
    matcher = match(write(family, schema, has_tags=False), has_tags=False)
    return matcher.validate_tokens(ids) == len(ids)


def write_pairs(family: str, *pairs: tuple[str, str]) -> str:
    form = find_scanner(family).choose_form("").arguments
    assert form is not None
    return form.separator.join(
        form.before + key + form.between + value + form.after for key, value in pairs
    )


@pytest.mark.parametrize("family", ["qwen3_coder", "glm4", "minimax_m2", "gemma4"])
def test_values_have_the_form_of_their_type(family: str) -> None:
    schema = SCHEMAS["scalars"]
    for pairs, is_allowed in [
        ([("days", "7"), ("share", "0.5"), ("on", "true")], True),
        ([("share", "1e+5"), ("on", "false"), ("one", "2.5")], True),
        ([("share", "1"), ("on", "True")], False),
        ([("days", "41"), ("share", "1"), ("on", "true")], False),
        # One is missing, and another one is not in the schema.
        ([("share", "1")], False),
        ([("share", "1"), ("on", "true"), ("other", "1")], False),
    ]:
        assert allows(family, schema, write_pairs(family, *pairs)) == is_allowed, pairs


@pytest.mark.parametrize("family", TAGGED)
def test_a_text_ends_at_its_tag(family: str) -> None:
    form = find_scanner(family).choose_form("").arguments
    assert form is not None
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    for text, is_allowed in [
        ("", True),
        ("null\n", True),
        ('</para <b> "c" \\ 5</', True),
        (f"a{form.text_end[:-1]}", True),
        (f"a{form.text_end}b", False),
    ]:
        pair = f"{form.before}a{form.text_between}{text}{form.after}"
        assert allows(family, schema, pair) == is_allowed, text
        if is_allowed:
            assert read(family, schema, write_call(family, pair)) == {"a": text}


def test_glm_4_7_writes_no_line_ends() -> None:
    form = find_scanner("glm4").choose_form("<arg_key>{k}</arg_key><arg_value>{v}")
    assert "\n" not in form.before + form.between + form.separator
    assert form.arguments is not None and "\n" not in form.arguments.after


@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_and_alternatives_at_the_root_are_possible(family: str) -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "maxLength": 20_000},
            "b": {"type": "integer"},
        },
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    form = find_scanner(family).choose_form("").arguments
    assert form is not None
    text = '"x"' if not form.text_end else "x"
    if form.nests:
        text = f"{form.text_end}x{form.text_end}"
    a = f"{form.before}a{form.text_between or form.between}{text}{form.after}"
    b = write_pairs(family, ("b", "7"))
    for pairs, is_allowed in [
        (a, True),
        (b, True),
        (a + form.separator + b, True),
        ("", False),
    ]:
        assert allows(family, schema, pairs) == is_allowed, pairs


@pytest.mark.parametrize("family", FAMILIES)
def test_lists_have_their_length(family: str) -> None:
    items = {"type": "number", "enum": [1, 2.5]}
    for least, most in [(0, 3), (1, 3), (2, 3), (2, None), (0, 0), (0, None)]:
        array = {"type": "array", "items": items, "minItems": least, "maxItems": most}
        if most is None:
            del array["maxItems"]
        comma = "," if family in GEMMA else ", "
        for count in range(5):
            pair = write_pairs(
                family, ("a", f"[{comma.join(['2.5', '1', '1', '1'][:count])}]")
            )
            schema = {"properties": {"a": array}}
            is_allowed = least <= count <= (4 if most is None else most)
            assert allows(family, schema, pair) == is_allowed, (least, most, count)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_further_property_is_none_of_the_listed_ones(family: str) -> None:
    number = {"type": "integer"}
    schema = {"properties": {"a": number}, "additionalProperties": number}
    for keys, is_allowed in [("a", True), ("b", True), ("ab", True), ("aa", False)]:
        pairs = write_pairs(family, *((key, "7") for key in keys))
        assert allows(family, schema, pairs) == is_allowed, keys


@pytest.mark.parametrize("family", FAMILIES)
def test_each_of_the_optional_properties_may_be_the_first(family: str) -> None:
    schema = {"properties": {key: {"type": "integer"} for key in "abc"}}
    pairs = [(key, "7") for key in "abc"]
    for chosen, is_allowed in [
        (pairs, True),
        (pairs[1:], True),
        (pairs[::2], True),
        ([], True),
        (pairs[::-1], False),
        ([pairs[0], pairs[0]], False),
    ]:
        assert allows(family, schema, write_pairs(family, *chosen)) == is_allowed


CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/a"}}}
CHAIN = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(40)}


def test_a_schema_that_a_form_cannot_express_is_refused() -> None:
    for families, schema, reason in (
        (FAMILIES, {"properties": {"a b": {"type": "string"}}}, "the name of the"),
        (FAMILIES, {"properties": {}, "required": ["a"]}, "the required property a"),
        (FAMILIES, {"properties": 5}, "the keyword properties in a wrong form"),
        (FAMILIES, {"minProperties": 1}, "the keyword minProperties"),
        (
            *(TAGGED, {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {}}}}}),
            "properties that a reference or a case lists",
        ),
        *(
            (families, {"properties": {"a": part}}, f"{reason} in the property a")
            for families, part, reason in [
                (
                    TAGGED,
                    {"allOf": [{}, {}]},
                    "the keyword allOf beside other conditions",
                ),
                (TAGGED, {"not": {"const": "b"}}, "the keyword not"),
                (TAGGED, {"pattern": "a$|^b"}, "the pattern a$|^b"),
                (TAGGED, {"$ref": "#/x"}, "the reference #/x"),
                (FAMILIES[:6], {"$ref": 5}, "the keyword $ref in a wrong form"),
                (
                    *(FAMILIES[:6], {"type": "string", "minLength": "5"}),
                    "the keyword minLength in a wrong form",
                ),
                (
                    *(TAGGED, {"type": "array", "items": {"$ref": "#"}}),
                    "the reference #",
                ),
                (
                    *(FAMILIES[:6], {"oneOf": [SHORT, SHORT]}),
                    "the keyword oneOf with cases that are not disjoint",
                ),
                (
                    *(TAGGED, {"type": ["string", "integer"], "enum": [1]}),
                    "values that this form cannot have",
                ),
                (
                    *(FAMILIES[:6], {"type": "string", "minLength": 2, "maxLength": 1}),
                    "values that this form cannot have",
                ),
                (
                    *(GEMMA, {"type": "array", "uniqueItems": True}),
                    "the keyword uniqueItems",
                ),
            ]
        ),
        (
            *(FAMILIES[:6], {**CIRCLE, "properties": {"a": {"$ref": "#/$defs/a"}}}),
            "references that go round in a circle in the property a",
        ),
        (
            *(GEMMA, {"$defs": CHAIN, "properties": {"a": {"$ref": "#/$defs/d0"}}}),
            "more than 32 objects in each other in the property a",
        ),
    ):
        for family in families:
            with pytest.raises(InvalidParameter) as caught:
                write(family, schema)
            assert caught.value.param == "tools[0].function.parameters"
            assert f"cannot be held to {reason}" in str(caught.value), family
