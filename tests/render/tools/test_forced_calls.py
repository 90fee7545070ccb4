"""Grammars of calls: whatever they allow is read as calls that match the tools."""

from __future__ import annotations

from functools import cache
import json
from pathlib import Path
import random
from tempfile import TemporaryDirectory
from typing import Any

from jsonschema import validate
from llguidance import LLMatcher, LLTokenizer
import numpy as np
import pytest
from tokenizers import Tokenizer

from trioserve.errors import InvalidParameter
from trioserve.grammar.compile import compile_structure
from trioserve.render.tools.families import find_scanner
from trioserve.render.tools.forced_calls import (
    list_schemas,
    write_answer,
    write_forced_calls,
)
from trioserve.render.tools.gpt_oss import GptOssScanner
from trioserve.render.tools.tool_table import ToolTable
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.types.families import TOOL_FAMILIES
from trioserve.types.output import TextDelta, ToolCallDelta
from trioserve.types.structured import StructuredOutput

SCANNERS = {name: find_scanner(name) for name in TOOL_FAMILIES}

PARAMETERS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 4},
            "days": {"type": "integer", "maximum": 9},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "additionalProperties": False},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
EOS = 1

# (family, a part of its template that chooses the form)
FORMS = [
    ("hermes", ""),
    ("llama3_json", ""),
    ("mistral", ""),
    ("mistral", "[ARGS]"),
    ("granite", ""),
    ("nemotron_v2", ""),
    ("jamba", ""),
    ("phi4_mini", ""),
    ("kimi_k2", ""),
    ("gpt_oss", ""),
    ("deepseek_v3", ""),
    ("deepseek_v3", "```json"),
    ("qwen3_coder", ""),
    ("glm4", ""),
    ("gemma4", ""),
    ("functiongemma", ""),
    ("llama4_pythonic", ""),
    ("minimax_m2", ""),
    ("deepseek_v32", ""),
    ("lfm2", ""),
]
# Their calls may begin as an answer in JSON does.
LIKE_JSON = {"llama3_json", "llama4_pythonic"}


@cache
def tokenizer(*, has_tags: bool = True) -> Tokenizer:
    """Make a tokenizer; its special tokens are all tags, or none."""
    with TemporaryDirectory() as folder:
        tiny_tokenizer(Path(folder))
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tags = {tag for scanner in SCANNERS.values() for tag in scanner.tags}
    if has_tags:
        tokenizer.add_special_tokens(sorted(tags - {"<tool_call>", "</tool_call>"}))
    return tokenizer


@cache
def encode(text: str, *, has_tags: bool = True) -> list[int]:
    return tokenizer(has_tags=has_tags).encode(text, add_special_tokens=False).ids


@cache
def guide(*, has_tags: bool = True) -> LLTokenizer:
    reader = tokenizer(has_tags=has_tags)
    size = reader.get_vocab_size()
    return LLTokenizer(reader.to_str(), n_vocab=size, eos_token=[EOS])


def match(grammar: str, *, has_tags: bool = True) -> LLMatcher:
    matcher = LLMatcher(guide(has_tags=has_tags), grammar)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def find_tags(family: str) -> dict[str, int]:
    special = {
        token.content: token_id
        for token_id, token in tokenizer().get_added_tokens_decoder().items()
    }
    tags = SCANNERS[family].tags
    return {tag: special[tag] for tag in tags if tag in special}


def write_grammar(family: str, template: str = "", **options: Any) -> str:
    scanner = SCANNERS[family]
    form = scanner.choose_form(template)
    tags = find_tags(family)
    options = {"names": frozenset(PARAMETERS), "takes_one": False} | options
    written = write_forced_calls(form, options.pop("tools", TOOLS), tags, **options)
    return LLMatcher.grammar_from_lark(written)


def decode(ids: list[int]) -> str:
    return tokenizer().decode(ids, skip_special_tokens=False)


# Texts that random tokens would hardly ever write.
ENDS = [
    *("</parameter>", "</arg_value>", "</｜DSML｜parameter>", '<|"|>', "<escape>", '"'),
]


def walk(
    matcher: LLMatcher, draw: random.Random, *, has_tags: bool = True
) -> list[int]:
    """Take random tokens that the grammar allows, until it may or must end."""
    ids: list[int] = []
    while not matcher.is_stopped():
        for end in ENDS if len(ids) % 6 == 5 else ():
            for text in (end, f"\n{end}"):
                way = encode(text, has_tags=has_tags)
                if matcher.validate_tokens(way) == len(way):
                    matcher.consume_tokens(way)
                    ids += way
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(mask, bitorder="little")
        may_end, bits[EOS] = bits[EOS], 0
        allowed = np.flatnonzero(bits)
        if may_end and (not len(allowed) or draw.random() < 0.5):
            break
        ids.append(int(draw.choice(allowed)))
        assert matcher.consume_token(ids[-1])
    assert not matcher.is_error()
    return ids


def split(
    family: str, text: str, *, calls_lead: bool = False
) -> tuple[str, tuple[ToolCallDelta, ...]]:
    scanner = SCANNERS[family](ToolTable(TOOLS), calls_lead=calls_lead)
    deltas = []
    for character in text:
        released, calls = scanner.push(character)
        deltas.append(TextDelta(text=released, tool_calls=calls))
    released, calls = scanner.push("", is_last=True)
    joined = TextDelta.join([*deltas, TextDelta(text=released, tool_calls=calls)])
    return joined.text, joined.tool_calls


@pytest.mark.parametrize(
    ("family", "template", "takes_one"),
    [
        *((*form, False) for form in FORMS),
        # Lists of JSON objects, calls behind each other, and lists of Python's calls.
        *((family, "", True) for family in ("mistral", "hermes", "llama4_pythonic")),
    ],
)
def test_what_a_grammar_allows_is_read_as_calls(
    family: str, template: str, takes_one: bool
) -> None:
    grammar = write_grammar(family, template, takes_one=takes_one)
    matcher = match(grammar)
    # Chat templates of gpt-oss have a place for one call in a message.
    is_single = takes_one or family == "gpt_oss"
    num_calls: set[int] = set()
    for seed in range(24):
        if seed > 2 and (is_single or num_calls > {1}):
            break
        ids = walk(matcher.deep_copy(), random.Random(seed))
        written = decode(ids)
        rest, calls = split(family, written)
        assert rest == "", written
        for call in calls:
            validate(json.loads(call.arguments), PARAMETERS[call.name])
        num_calls.add(len(calls))
    assert num_calls == {1} if is_single else num_calls > {1}


ANSWER = {
    "type": "object",
    "properties": {"note": {"type": "string", "maxLength": 3}},
    "required": ["note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("family", "template"), [each for each in FORMS if each[0] not in LIKE_JSON]
)
def test_an_answer_has_its_form_or_calls(family: str, template: str) -> None:
    scanner = SCANNERS[family]
    form = scanner.choose_form(template)
    assert scanner.marks(form)
    text = compile_structure(StructuredOutput(kind="json", value=json.dumps(ANSWER)))
    calls = write_grammar(family, template, is_free=True)
    tags = find_tags(family)
    grammar = write_answer(scanner.answer_form, tags, text, calls)
    matcher = match(grammar)
    kinds: set[bool] = set()
    for seed in range(16):
        if len(kinds) == 2:
            break
        ids = walk(matcher.deep_copy(), random.Random(seed))
        written = decode(ids)
        rest, found = split(family, written, calls_lead=True)
        assert bool(rest) != bool(found), written
        if rest:
            validate(json.loads(rest), ANSWER)
        for call in found:
            assert isinstance(json.loads(call.arguments), dict)
        kinds.add(bool(found))
    assert kinds == {True, False}


def test_all_families_have_forms_and_some_begin_as_json_does() -> None:
    assert {family for family, _ in FORMS} == set(SCANNERS)
    for name, scanner in SCANNERS.items():
        assert scanner.marks(scanner.choose_form("")) == (name not in LIKE_JSON)


@pytest.mark.parametrize("family", ["hermes", "mistral", "granite", "phi4_mini"])
def test_a_call_in_a_string_of_an_answer_with_a_form_is_text(family: str) -> None:
    form = SCANNERS[family].choose_form("")
    call = form.first + form.before + "stop" + form.between + "{}" + form.after
    answer = f'["{call}{form.last}"]'
    assert split(family, answer, calls_lead=True) == (answer, ())
    assert split(family, answer)[1]


def test_only_strict_tools_bind_the_calls_of_a_free_model() -> None:
    names = ("loose", "tight")
    parameters = {"type": "object", "properties": {"x": {"const": "only this"}}}
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": parameters,
                "strict": name == "tight",
            },
        }
        for name in names
    ]
    options: Any = {"tools": tools, "names": frozenset(names)}
    free = write_grammar("hermes", is_free=True, **options)
    assert free.count("only this") == 1
    assert write_grammar("hermes", **options).count("only this") == 2
    [(param, schema)] = list_schemas(tools, frozenset(names), is_free=True)
    assert param == "tools[1].function.parameters"
    assert json.loads(schema) == parameters


def test_gpt_oss_may_think_before_it_calls() -> None:
    grammar = write_grammar("gpt_oss", takes_one=True)
    begin = "<|channel|>analysis<|message|>Is it\n{stop}?<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"
    for written, is_allowed in [
        (call, True),
        (begin + call, True),
        (begin + "<|channel|>final<|message|>No.", False),
        (begin + begin, False),
    ]:
        matcher = match(grammar)
        ids = encode(written)
        assert (matcher.validate_tokens(ids) == len(ids)) == is_allowed


@pytest.mark.parametrize(
    ("structure", "right", "wrong"),
    [
        (StructuredOutput(kind="json", value='{"type": "integer"}'), "12", '"a"'),
        (StructuredOutput(kind="regex", value="a+"), "aaa", "ab"),
        (StructuredOutput(kind="choice", choices=("so", "no")), "no", "o"),
        (StructuredOutput(kind="grammar", value='start: "a" x\nx: "b"+'), "abb", "a"),
    ],
)
def test_a_form_of_gpt_oss_is_that_of_its_final_message(
    structure: StructuredOutput, right: str, wrong: str
) -> None:
    form = GptOssScanner.answer_form
    assert form is not None
    ids = {tag: tokenizer().token_to_id(tag) for tag in GptOssScanner.tags}
    grammar = write_answer(form, ids, compile_structure(structure))
    thought = "<|channel|>analysis<|message|>Is it\n12?<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    for written, is_allowed in [
        (final + right, True),
        (thought + final + right, True),
        (final + wrong, False),
        (right, False),
        (thought + thought + final + right, False),
    ]:
        matcher = match(grammar)
        tokens = encode(written)
        is_whole = matcher.consume_tokens(tokens) and matcher.is_accepting()
        assert is_whole == is_allowed, written


def test_a_named_tool_is_the_only_one() -> None:
    grammar = write_grammar("hermes", names=frozenset({"stop"}))
    matcher = match(grammar)
    ids = walk(matcher, random.Random(0))
    _, calls = split("hermes", tokenizer().decode(ids))
    assert {call.name for call in calls} == {"stop"}


def test_a_tool_without_parameters_is_called_without_arguments() -> None:
    for parameters, is_any in (
        (None, False),
        ({}, False),
        ({"properties": {}}, False),
        ({"type": "object", "properties": {}}, False),
        ({"type": "object"}, True),
        ({"type": "object", "description": "any"}, True),
        ({"additionalProperties": True}, True),
        ({"type": "object", "properties": {}, "additionalProperties": {}}, True),
        ({"properties": {"a": {}}}, True),
    ):
        functions: list[dict[str, Any]] = [{"name": "stop", "parameters": parameters}]
        if parameters is None:
            functions.append({"name": "stop"})
        for function in functions:
            tools = [{"type": "function", "function": function}]
            options: Any = {"tools": tools, "names": frozenset({"stop"})}
            for is_free in (False, True):
                grammar = write_grammar("hermes", is_free=is_free, **options)
                for arguments in ("{}", '{"a": 1}'):
                    matcher = match(grammar)
                    call = f'<tool_call>\n{{"name": "stop", "arguments": {arguments}'
                    ids = encode(call)
                    is_allowed = matcher.validate_tokens(ids) == len(ids)
                    assert is_allowed == (
                        arguments == "{}" or is_any or is_free
                    ), parameters


@pytest.mark.parametrize(
    ("function", "param"),
    [
        # 1 to 128 letters, digits, underscores, dots, hyphens and slashes.
        ({"name": "a b"}, "tools[0].function.name"),
        ({"name": "a" * 129}, "tools[0].function.name"),
        (
            {"name": "a", "parameters": {"type": "string"}},
            "tools[0].function.parameters.type",
        ),
    ],
)
def test_a_tool_that_cannot_be_written_is_named(
    function: dict[str, Any], param: str
) -> None:
    tools = [{"type": "function", "function": function}]
    with pytest.raises(InvalidParameter) as caught:
        write_grammar("hermes", tools=tools, names=frozenset({function["name"]}))
    assert caught.value.param == param


def test_the_second_tool_of_a_name_is_named() -> None:
    functions = [{"name": name} for name in ("a", "b", "b")]
    tools = [{"type": "function", "function": each} for each in functions]
    with pytest.raises(InvalidParameter) as caught:
        write_grammar("hermes", tools=tools, names=frozenset("ab"))
    assert caught.value.param == "tools[2].function.name"
    # Nobody calls those.
    write_grammar("hermes", tools=tools, names=frozenset("a"))
