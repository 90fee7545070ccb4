"""Turns the form that a client wants into the text of a grammar.

It runs in a renderer worker under a time limit. It needs no tokenizer, so the server's
process does without one here. The device builds the grammar once more, with its tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
import json
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher

from ..errors import InvalidParameter
from ..processes.threads.deep_stack import run_with_deep_stack
from ..types.nesting import check_nesting
from ..types.structured import StructuredOutput
from .endless import is_endless
from .failures import GrammarError, check_panic, explain, raising_library_failures
from .limits import MAX_BYTES, MAX_CHOICES, MAX_RULES, make_limits
from .schema_parts import Schema, close_objects, drop_unknown_formats, locate
from .structural_tag import write_structural_tag

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# One blank, or a line end with its indentation. A model that is free to write blanks
# without end sometimes does, until max_tokens.
_WHITESPACE: Final = r"[ ]|\n[ ]{0,40}"

_ANY_OBJECT: Final = '{"type": "object"}'

# Before each mask, llguidance would follow all text that the grammar forces, to split it as
# the tokenizer does. A mask of `(a{1000}){3000}` would take 17 s and 1.2 GB. One part of a
# grammar switches that off for all.
_NO_FORCING: Final = {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: "-"'}


def compile_structure(structure: StructuredOutput) -> str:
    """Return the grammar of a form.

    Raises:
      InvalidParameter: it is wrong, too large, or needs something that grammars cannot
        express; names the field, and the path within a schema.
      LibraryFailed: a defect of the library.
    """
    size = len(structure.value) + sum(map(len, structure.choices))
    if size > MAX_BYTES:
        raise InvalidParameter(
            structure.param, f"may have {MAX_BYTES} characters, got {size}"
        )
    if structure.kind == "grammar":
        _check_rules(structure)
    try:
        with raising_library_failures():
            # llguidance calls itself for each of a chain of definitions.
            return run_with_deep_stack(partial(_compile, structure))
    except GrammarError as error:
        raise InvalidParameter(structure.param, str(error)) from None


def _check_rules(structure: StructuredOutput) -> None:
    num_rules = sum(":" in line for line in structure.value.splitlines())
    if num_rules > MAX_RULES:
        raise InvalidParameter(
            structure.param, f"at most {MAX_RULES} rules are possible, got {num_rules}"
        )


def _compile(structure: StructuredOutput) -> str:
    try:
        text = _forbid_forcing(_write(structure))
    # Of the library, for what it cannot even read, such as numbers of 300 digits.
    except ValueError as error:
        raise GrammarError(explain(str(error), structure.kind)) from None
    reason = find_mistake(text)
    if reason is None:
        _refuse_endless(structure)
        return text
    for param, schema in _list_schemas(structure):
        # A large schema takes seconds to check. Its own reason is known.
        wrong = reason if structure.kind == "json" else _check_schema(schema)
        if wrong is not None:
            path, wrong = locate(schema, wrong, _check_schema)
            raise InvalidParameter(param, f"{path}: {explain(wrong, 'json')}")
    raise GrammarError(explain(reason, structure.kind))


def _refuse_endless(structure: StructuredOutput) -> None:
    for param, schema in _list_schemas(structure):
        if isinstance(schema, dict) and is_endless(schema):
            raise InvalidParameter(
                param, "#: no value matches: each one would have to contain another one"
            )


def find_mistake(grammar: str) -> str | None:
    """Return llguidance's reason why a grammar cannot be used; None if it can."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(
        grammar, None, limits=make_limits()
    )
    # Special tokens are looked up where the tokenizer is.
    if not is_error or "no tokenizer" in messages[0]:
        return None
    check_panic(messages[0])
    # It may go on with the places from which a definition was reached.
    return messages[0].partition("\n  while processing ")[0].strip()


def write_json_options(structure: StructuredOutput) -> JsonCompileOptions:
    """Return llguidance's options for the JSON of a form."""
    if structure.whitespace:
        return {"whitespace_pattern": _WHITESPACE, "lenient": False}
    return {"whitespace_flexible": False, "lenient": False}


def _write(structure: StructuredOutput) -> str:
    if structure.kind == "regex":
        return LLMatcher.grammar_from_regex(structure.value)
    if structure.kind == "choice":
        return _write_choice(structure)
    if structure.kind == "grammar":
        return LLMatcher.grammar_from_lark(structure.value)
    if structure.kind == "structural_tag":
        return write_structural_tag(structure, write_json_options(structure))
    return _write_schema(structure.value or _ANY_OBJECT, structure)


def _forbid_forcing(grammar: str) -> str:
    is_json = grammar.startswith("{")
    parts = json.loads(grammar)["grammars"] if is_json else [{"lark_grammar": grammar}]
    return json.dumps({"grammars": [*parts, _NO_FORCING]})


def _write_schema(schema: str, structure: StructuredOutput) -> str:
    try:
        decoded = json.loads(schema, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidParameter(structure.param, "the schema is not JSON") from None
    if decoded is True:
        decoded = {}
    if not isinstance(decoded, dict):
        raise InvalidParameter(structure.param, "a JSON schema is an object")
    check_nesting(structure.param, decoded)
    if "x-guidance" in decoded:
        raise InvalidParameter(structure.param, "#/x-guidance is not taken")
    decoded = drop_unknown_formats(decoded)
    if structure.closed:
        decoded = close_objects(decoded)
    return LLMatcher.grammar_from_json_schema(
        decoded, overrides=write_json_options(structure)
    )


def _list_schemas(structure: StructuredOutput) -> Iterator[tuple[str, Schema]]:
    """Yield the JSON schemas of a form, each with its field of the request."""
    if structure.kind == "json":
        schema = json.loads(structure.value)
        if isinstance(schema, dict):
            yield structure.param, drop_unknown_formats(schema)
    elif structure.kind == "structural_tag":
        for index, tag in enumerate(json.loads(structure.value)["structures"]):
            schema = drop_unknown_formats(tag.get("schema", {}))
            yield f"{structure.param}.structures[{index}].schema", schema
    for param, text in structure.parts:
        yield param, json.loads(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _write_choice(structure: StructuredOutput) -> str:
    choices = structure.choices
    if not choices:
        raise InvalidParameter(structure.param, "needs at least one choice")
    if len(choices) > MAX_CHOICES:
        raise InvalidParameter(
            structure.param, f"at most {MAX_CHOICES} choices are possible"
        )
    if "" in choices:
        raise InvalidParameter(structure.param, "a choice must not be empty")
    # Lark's strings have the same escapes as JSON.
    alternatives = " | ".join(json.dumps(text) for text in choices)
    return LLMatcher.grammar_from_lark(f"start: {alternatives}")


def _check_schema(schema: Schema) -> str | None:
    return find_mistake(LLMatcher.grammar_from_json_schema(schema))
