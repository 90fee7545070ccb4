"""Forms become grammars; parts that a grammar cannot express are refused by their place."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer
import pytest

from trioserve.errors import InvalidParameter
from trioserve.grammar import compile as compile_module, schema_parts
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.failures import LibraryFailed, explain
from trioserve.grammar.limits import MAX_BYTES, MAX_CHOICES, MAX_RULES
from trioserve.grammar.matchers import Matchers
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


def test_no_text_is_followed_before_a_token_is_chosen(
    open_matcher: Callable[[StructuredOutput], LLMatcher],
) -> None:
    """It may be long, and no limit of the library bounds the time for it."""
    for structure in (
        StructuredOutput(kind="regex", value="abc(a{1000}){3000}"),
        StructuredOutput(kind="choice", choices=("abcd",)),
        StructuredOutput(kind="grammar", value='start: "abcd"'),
        make_json(PERSON),
    ):
        assert open_matcher(structure).compute_ff_tokens() == []


def test_whitespace_is_allowed_and_bounded(accepts: Accepts) -> None:
    for text, is_allowed in (
        ('{"name":"A","age":1}', True),
        ('{"name": "A", "age": 1}', True),
        ('{\n  "name": "A",\n  "age": 1\n}', True),
        ('{"name":  "A", "age": 1}', False),
        ('{"name": "A",\n\n"age": 1}', False),
        ('{"name":"A"}', False),
        ('{"name":"A","age":1.5}', False),
        (' {"name":"A","age":1}', False),
        ('{"name":"A","age":1}\n', False),
    ):
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


def test_a_mistake_in_a_schema_is_named_with_its_place() -> None:
    for schema, message in (
        ({"not": {}}, '#: the keyword "not" is not supported'),
        (
            {"properties": {"a/b": {"if": {}}}},
            '#/properties/a~1b: the keyword "if" is not supported',
        ),
        (
            {"items": {"contains": {}, "uniqueItems": True}},
            '#/items: the keywords "contains", "uniqueItems" are not supported',
        ),
        (
            {"$defs": {"a": {"type": "x"}}, "$ref": "#/$defs/a"},
            '#/$defs/a: "type" has no value "x"',
        ),
        ({"anyOf": [{}, {"format": "iri"}]}, '#/anyOf/1: the format "iri"'),
        (
            {"type": "array", "minItems": 1, "items": NEVER},
            "#: no value matches: required item is unsatisfiable",
        ),
        ({"$ref": "http://localhost/x"}, '#: "$ref" names "http://localhost/x", but'),
        ({"$ref": "#/$defs/b"}, '#: "$ref" names "#/$defs/b", which does not exist'),
        ({"items": {"pattern": "("}}, '#/items: "pattern" or "patternProperties" is'),
        ({"minLength": -1}, '#: "minLength" must be a whole number'),
        ({"oneOf": [{}, {"type": "null"}]}, '#: "oneOf" is only supported if'),
        ({"enum": []}, "#: no value is allowed"),
    ):
        assert refuse(make_json(schema)).startswith(f"response_format: {message}")


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (
            StructuredOutput(kind="regex", value="(a"),
            "structured_outputs: the expression is wrong: unclosed group",
        ),
        (
            StructuredOutput(kind="regex", value=r"\bfoo"),
            "structured_outputs: the expression is wrong: look-around is not supported",
        ),
        (
            StructuredOutput(kind="grammar", value='start: "a"\n  | x'),
            'structured_outputs: line 1, column 8: unknown name: "x"',
        ),
        (
            StructuredOutput(kind="grammar", value="%import common.X\nstart: X"),
            "structured_outputs: line 1, column 1: Unknown common regex: common.X",
        ),
        (
            StructuredOutput(kind="grammar", value='begin: "a"'),
            'structured_outputs: there is no rule "start"',
        ),
        (
            make_json({"properties": {f"f{i}": {} for i in range(3000)}}),
            "response_format: #: it is too large",
        ),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_a_mistake_is_told_in_plain_words(
    structure: StructuredOutput, message: str
) -> None:
    """Without positions in texts that the client has not sent, and lists of names."""
    assert refuse(structure) == message


def test_a_mistake_in_an_inner_schema_is_named_with_its_place() -> None:
    schema = {"items": {"not": {}}}
    tags = [{"begin": "<a>", "end": "", "schema": schema}]
    for kind, value, parts, param in (
        (
            "structural_tag",
            json.dumps({"structures": tags, "triggers": ["<"]}),
            (),
            "structured_outputs.structures[0].schema",
        ),
        (
            "grammar",
            f"start: %json {json.dumps(schema)}",
            (("tools[0].function.parameters", "{}"), ("tools[1]", json.dumps(schema))),
            "tools[1]",
        ),
    ):
        form = StructuredOutput(kind=kind, value=value, parts=parts)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter) as caught:
            compile_structure(form)
        assert caught.value.param == param
        assert str(caught.value).endswith('#/items: the keyword "not" is not supported')


def test_a_panic_of_the_library_is_no_fault_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Panic(BaseException):
        pass

    class FakeMatcher:
        @staticmethod
        def grammar_from_regex(text: str) -> str:
            raise Panic()

    monkeypatch.setattr(compile_module, "LLMatcher", FakeMatcher)
    with pytest.raises(LibraryFailed):
        compile_structure(StructuredOutput(kind="regex", value="a"))


def test_a_wrong_form_is_refused() -> None:
    for structure in (
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
    ):
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
    assert schema_parts.locate(schema, "wrong", check) == ("#", "wrong")
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


def make_chain(part: Callable[[str], Any], length: int) -> StructuredOutput:
    """Make a schema whose definitions refer to each other in a row."""
    definitions = {f"d{i}": part(f"#/$defs/d{i + 1}") for i in range(length)}
    definitions[f"d{length}"] = {"type": "null"}
    return make_json({"$ref": "#/$defs/d0", "$defs": definitions})


def test_a_long_chain_of_definitions_does_not_end_the_process(
    guidance: LLTokenizer,
) -> None:
    """The library calls itself for each of them."""
    allowed = compile_structure(
        make_chain(lambda ref: {"allOf": [{"$ref": ref}]}, 4000)
    )
    matchers = Matchers(lambda: guidance)
    matchers.build(allowed)
    assert matchers.find(allowed) is not None
    large = make_chain(lambda ref: {"properties": {"a": {"$ref": ref}}}, 1000)
    assert "too large" in refuse(large)


def test_a_grammar_has_a_bounded_number_of_rules() -> None:
    rules = [f"a{i}: a{i + 1}" for i in range(MAX_RULES)]
    for number, value in enumerate([rules[1:], rules]):
        text = "\n".join(["start: a0", *value, f'a{MAX_RULES}: "a"'])
        form = StructuredOutput(kind="grammar", value=text.replace("start: a0", ""))
        message = refuse(form)
        assert ("rules are possible" in message) is (number == 1)


def test_a_grammar_that_becomes_too_complex_is_explained() -> None:
    message = "lexer error: too many expressions constructed\n<non-verbose/>"
    assert explain(message) == "it has become too complex"
    assert explain("LexerTooComplex\n") == "it has become too complex"
    assert explain("1(2): lexer error", "grammar") == (
        "line 1, column 2: the text is not Lark"
    )
