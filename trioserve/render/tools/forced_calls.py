"""The grammars of answers that call tools, or whose text has a form, for llguidance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
import json
import re
from typing import Any, Final

from ...errors import InvalidParameter
from .arguments_grammar import ArgumentsWriter
from .call_form import AnswerForm, ArgumentsForm, CallForm
from .lark import write_json, write_literal
from .nested_grammar import NestedWriter
from .schema_cases import Unwritable

_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_NO_PARAMETERS: Final = {"type": "object", "additionalProperties": False}

# The names of the grammars of the text and of the calls, in the answer's grammar.
_TEXT: Final = "text"
_CALLS: Final = "calls"

# Every family reads these names. The words are for the client.
_NAME: Final = re.compile(r"[\w.\-/]{1,128}")
_NAME_RULE: Final = "1 to 128 letters, digits, underscores, dots, hyphens and slashes"


def write_forced_calls(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]],
    special_tags: Mapping[str, int],
    *,
    names: frozenset[str],
    takes_one: bool,
    is_free: bool = False,
) -> str:
    """Return the grammar, in llguidance's variant of Lark.

    Args:
      tools: all tools of the request, in OpenAI's form.
      special_tags: ids of the format's tags that are special tokens.
      names: the tools of which one, or several, must be called.
      takes_one: there is one call and no more.
      is_free: the arguments of a tool without `strict` are any object. A model that need not
        call is as free in its calls as one without a grammar.

    Raises:
      InvalidParameter: a name cannot be written, or two tools have it, or the parameters
        are not an object.
    """
    write = partial(write_literal, special_tags)
    writer = _make_writer(form.arguments, special_tags)
    calls, rules = [], []
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        function = tool["function"]
        if function["name"] not in names:
            continue
        path = f"tools[{index}].function"
        call = _check_name(function["name"], path)
        if call in seen:
            raise InvalidParameter(
                f"{path}.name",
                "another tool has this name, so no grammar can have its calls",
            )
        seen.add(call)
        schema = _ANY_OBJECT
        if _binds(function, is_free):
            schema = _make_schema(function.get("parameters"), path)
        calls.append(f"call_{index}")
        rules += [
            f"call_{index}: {write(form.before + call + form.between)}"
            f" arguments_{index} {write(form.after)}",
            f"arguments_{index}: {_write_arguments(writer, schema, path)}",
        ]
    is_single = takes_one or form.takes_one
    more = "" if is_single else f" ({write(form.separator)} call)*"
    thought = ""
    if form.thought is not None:
        thought = "thought? "
        rules.append(_write_thought(form.thought, special_tags))
    return "\n".join(
        [
            f"start: {thought}{write(form.first)} call{more} {write(form.last)}",
            f"call: {' | '.join(calls)}",
            *rules,
            *(writer.list_rules() if writer is not None else ()),
        ]
    )


def _make_writer(
    form: ArgumentsForm | None, special_tags: Mapping[str, int]
) -> ArgumentsWriter | None:
    if form is None:
        return None
    return (NestedWriter if form.nests else ArgumentsWriter)(form, special_tags)


def _write_arguments(
    writer: ArgumentsWriter | None, schema: Mapping[str, Any], path: str
) -> str:
    if writer is None:
        return write_json(schema)
    try:
        return writer.write(schema)
    except Unwritable as error:
        raise InvalidParameter(
            f"{path}.parameters",
            f"calls in this model's form cannot be held to {error}",
        ) from None


def list_schemas(
    tools: Sequence[Mapping[str, Any]], names: frozenset[str], *, is_free: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the schemas that such a grammar has, each with its field of the request."""
    functions = [(i, tool["function"]) for i, tool in enumerate(tools)]
    return tuple(
        (f"tools[{i}].function.parameters", json.dumps(function["parameters"]))
        for i, function in functions
        if function["name"] in names
        and function.get("parameters")
        and _binds(function, is_free)
    )


def _binds(function: Mapping[str, Any], is_free: bool) -> bool:
    """Return whether the schema of a function binds the arguments of its calls."""
    return not is_free or bool(function.get("strict"))


def _check_name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"{path}.name",
            f"a grammar cannot have a call of this tool: its name must be {_NAME_RULE}",
        )
    return name


def _make_schema(parameters: object, path: str) -> dict[str, Any]:
    schema = parameters if isinstance(parameters, dict) else {}
    if schema.get("type", "object") != "object":
        raise InvalidParameter(f"{path}.parameters.type", "must be object")
    # Clients write a tool without parameters in these ways.
    if schema.keys() <= {"type", "properties"} and not schema.get("properties", schema):
        return _NO_PARAMETERS
    return {**_ANY_OBJECT, **schema}


def write_answer(
    form: AnswerForm | None,
    special_tags: Mapping[str, int],
    text: str,
    calls: str | None = None,
) -> str:
    """Return the grammar of the whole answer.

    Args:
      form: the parts around the text; None for nothing.
      special_tags: ids of the format's tags that are special tokens.
      text: the grammar of the text, as llguidance takes it: JSON, or its variant of Lark.
      calls: the grammar of an answer that calls tools instead; None if it may not.
    """
    if form is None and calls is None:
        return text
    grammars = _read_parts(text, _TEXT)
    rules = [f"start: {_write_before(form, special_tags)}@{_TEXT}"]
    if form is not None:
        rules.append(_write_thought(form.thought, special_tags))
    if calls is not None:
        grammars += _read_parts(calls, _CALLS)
        rules[0] += f" | @{_CALLS}"
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *grammars]})


def _write_before(form: AnswerForm | None, special_tags: Mapping[str, int]) -> str:
    if form is None:
        return ""
    return f"thought? {write_literal(special_tags, form.before)} "


def _read_parts(grammar: str, name: str) -> list[dict[str, object]]:
    """Return the parts of a grammar; the first one gets a name."""
    if not grammar.startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *others = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *others]


def _write_thought(tags: tuple[str, str], special_tags: Mapping[str, int]) -> str:
    """Write the rule `thought`: any text between two tags."""
    begin, end = map(partial(write_literal, special_tags), tags)
    return rf"thought: {begin} /(.|\n)*/ {end}"
