"""Forms become grammars; what a grammar cannot express is refused with its place."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

import pytest

from trioserve.errors import InvalidParameter
from trioserve.grammar import schema_parts
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.limits import MAX_BYTES, MAX_CHOICES
from trioserve.types.structured import StructuredOutput

Accepts = Callable[[StructuredOutput, str], bool]

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


# No text has it.
NEVER = {"type": "string", "minLength": 2, "maxLength": 1}


def make_json(schema: Any, **options: bool) -> StructuredOutput:
    return StructuredOutput(
        kind="json", value=json.dumps(schema), param="response_format", **options
    )


def refuse(structure: StructuredOutput) -> str:
    with pytest.raises(InvalidParameter) as caught:
        compile_structure(structure)
    assert caught.value.param == structure.param
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"name":"A","age":1}', True),
        ('{"name": "A", "age": 1}', True),
        ('{\n  "name": "A",\n  "age": 1\n}', True),
        ('{"name":  "A", "age": 1}', False),
        ('{"name": "A",\n\n"age": 1}', False),
        ('{"name":"A"}', False),
        ('{"name":"A","age":1.5}', False),
        (' {"name":"A","age":1}', False),
        ('{"name":"A","age":1}\n', False),
    ],
)
def test_whitespace_is_allowed_and_bounded(
    accepts: Accepts, text: str, is_allowed: bool
) -> None:
    assert accepts(make_json(PERSON), text) is is_allowed


def test_no_indentation_goes_on_without_end(accepts: Accepts) -> None:
    assert not accepts(make_json(PERSON), '{\n%s"name":"A","age":1}' % (" " * 41))


def test_a_form_can_exclude_whitespace(accepts: Accepts) -> None:
    compact = make_json(PERSON, whitespace=False)
    assert accepts(compact, '{"name":"A","age":1}')
    assert not accepts(compact, '{"name": "A","age":1}')


def test_objects_are_open_unless_the_client_closes_them(accepts: Accepts) -> None:
    text = '{"name":"A","age":1,"more":true}'
    assert accepts(make_json(PERSON), text)
    assert not accepts(make_json(PERSON, closed=True), text)
    nested = {"type": "array", "items": {"anyOf": [PERSON]}}
    assert not accepts(make_json(nested, closed=True), f"[{text}]")


def test_a_json_object_is_an_object(accepts: Accepts) -> None:
    form = StructuredOutput(kind="json_object")
    assert accepts(form, '{"a":[1,{"b":null}]}')
    assert not accepts(form, "[1]")


@pytest.mark.parametrize("schema", [True, {}])
def test_an_empty_schema_allows_any_json(accepts: Accepts, schema: object) -> None:
    assert accepts(make_json(schema), "[1,null]")


def test_a_regex_covers_the_whole_text(accepts: Accepts) -> None:
    form = StructuredOutput(kind="regex", value=r"[a-c]+\d/?")
    assert accepts(form, "abc1/")
    assert not accepts(form, "xabc1")


def test_choices_are_plain_texts(accepts: Accepts) -> None:
    form = StructuredOutput(kind="choice", choices=('a"b', "ä\n🙂", "(.*)"))
    for choice in form.choices:
        assert accepts(form, choice)
    assert not accepts(form, "anything")


def test_a_grammar_is_taken_in_lark(accepts: Accepts) -> None:
    form = StructuredOutput(kind="grammar", value='start: "(" start ")" | "x"')
    assert accepts(form, "((x))")
    assert not accepts(form, "((x)")


def test_tags_fix_parts_of_a_free_text(accepts: Accepts) -> None:
    structure = {"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"}
    value = json.dumps({"structures": [structure], "triggers": ["<f="]})
    form = StructuredOutput(kind="structural_tag", value=value)
    assert accepts(form, "I add. <f=add>12</f> Done.")
    assert accepts(form, "no call")
    assert not accepts(form, "I add. <f=add>twelve</f>")
    assert not accepts(form, "<f=other>12</f>")


@pytest.mark.parametrize(
    ("schema", "place", "keyword"),
    [
        ({"not": {}}, "#:", "not"),
        ({"properties": {"a/b": {"if": {}}}}, "#/properties/a~1b:", "if"),
        ({"items": {"contains": {}}}, "#/items:", "contains"),
        ({"$defs": {"a": {"type": "x"}}, "$ref": "#/$defs/a"}, "#/$defs/a:", "x"),
        ({"anyOf": [{}, {"format": "iri"}]}, "#/anyOf/1:", "iri"),
        (
            {"type": "array", "minItems": 1, "items": NEVER},
            "#:",
            "required item",
        ),
        ({"$ref": "http://localhost/x"}, "#:", "http://localhost/x"),
    ],
)
def test_a_mistake_in_a_schema_is_named_with_its_place(
    schema: object, place: str, keyword: str
) -> None:
    message = refuse(make_json(schema))
    assert place in message and keyword in message


@pytest.mark.parametrize(
    "structure",
    [
        StructuredOutput(kind="json", value="{"),
        StructuredOutput(kind="json", value="[]"),
        StructuredOutput(kind="json", value="false"),
        StructuredOutput(kind="json", value='{"const": NaN}'),
        # It would change the grammar in ways that the answer does not show.
        StructuredOutput(kind="json", value='{"x-guidance": {"item_separator": ";"}}'),
        StructuredOutput(
            kind="structural_tag",
            value='{"structures": [{"begin": "<", "end": ">", "schema": %s}], '
            '"triggers": ["<"]}' % ('{"a":' * 20_000 + "1" + "}" * 20_000),
        ),
        StructuredOutput(kind="regex", value="("),
        StructuredOutput(kind="regex", value="(?=a)b"),
        StructuredOutput(kind="choice"),
        StructuredOutput(kind="choice", choices=("",)),
        StructuredOutput(kind="choice", choices=("a",) * (MAX_CHOICES + 1)),
        StructuredOutput(kind="grammar", value="begin: x"),
        StructuredOutput(kind="structural_tag", value="{}"),
        StructuredOutput(
            kind="structural_tag", value='{"structures": [], "triggers": []}'
        ),
        StructuredOutput(kind="regex", value="a" * (MAX_BYTES + 1)),
        StructuredOutput(kind="json", value='{"items":' * 65 + "{}" + "}" * 65),
        StructuredOutput(kind="json", value="[" * 100_000),
        StructuredOutput(kind="json", value='{"minimum": -1%s}' % ("0" * 300)),
        StructuredOutput(
            kind="json",
            value=json.dumps({"properties": {f"f{i}": {} for i in range(3000)}}),
            closed=True,
        ),
    ],
    ids=lambda s: f"{s.kind} {s.value[:12]}",
)
def test_a_wrong_form_is_refused(structure: StructuredOutput) -> None:
    assert refuse(structure)


def test_a_thousand_fields_are_possible(accepts: Accepts) -> None:
    fields = {f"f{i}": {"type": "integer"} for i in range(1000)}
    form = make_json({"type": "object", "properties": fields}, closed=True)
    assert accepts(form, '{"f0": 1, "f998": 2, "f999": 3}')


def test_a_mistake_in_a_large_schema_is_found_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part refers to a large definition, so the time counts, not the parts."""
    monkeypatch.setattr(schema_parts, "_MAX_SECONDS", 0.0)
    checked: list[object] = []

    def check(part: schema_parts.Schema) -> str | None:
        checked.append(part)
        return None

    parts = {f"p{i}": {"$ref": "#/$defs/big"} for i in range(400)}
    schema = {"$defs": {"big": {}}, "properties": parts}
    assert schema_parts.locate(schema, "wrong", check) == "#: wrong"
    assert len(checked) <= 1


def test_formats_that_json_schema_does_not_define_are_ignored(accepts: Accepts) -> None:
    secret = {"type": "string", "format": "password"}
    named = {"type": "object", "properties": {"format": secret}}
    assert accepts(make_json({"anyOf": [named, secret]}), '{"format": "x"}')
    assert accepts(make_json({"anyOf": [named, secret]}), '"x"')
    assert not accepts(make_json({"type": "string", "format": "uuid"}), '"x"')


def test_tags_have_closed_objects_if_the_client_wants_them(accepts: Accepts) -> None:
    structure = {"begin": "<p>", "schema": PERSON, "end": "</p>"}
    value = json.dumps({"structures": [structure], "triggers": ["<p>"]})
    text = '<p>{"name":"A","age":1,"b":2}</p>'
    for closed in (False, True):
        form = StructuredOutput(kind="structural_tag", value=value, closed=closed)
        assert accepts(form, text) is not closed


def test_special_tokens_are_left_to_the_device() -> None:
    structure = StructuredOutput(kind="grammar", value='start: <|im_start|> "a"')
    assert compile_structure(structure)
