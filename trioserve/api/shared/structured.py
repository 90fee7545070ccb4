"""The form that the answer must have: `response_format`, `structured_outputs`, `guided_*`.

Schemas stay bytes here: a renderer worker compiles them.

Sources: OpenAI's reference for response_format; vLLM 0.33 for the others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import json
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ...types.structured import StructuredOutput, StructureKind
from ..decode.decoder import DecodeField
from ..decode.values import decode_copy, has_value

# As in grammar/limits.py.
_MAX_CHOICES: Final = 4096

Choices = Annotated[tuple[str, ...], Meta(max_length=_MAX_CHOICES)]

FORMAT_TYPES: Final = ("text", "json_object", "json_schema", "structural_tag")
FormatType = Annotated[str, Meta(extra_json_schema={"enum": FORMAT_TYPES})]


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A schema with a name.

    Args:
      strict: the answer matches the schema in any case, so this changes nothing.
    """

    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's field.

    Args:
      json_schema: for the type json_schema.
      schema, value: a schema of the type json_object, as llama.cpp and TGI take it.
        json_schema takes `schema`, too.
      structures, triggers: for the type structural_tag; see structured_outputs.
    """

    type: FormatType
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    structures: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    triggers: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's field: one form, and the spelling of its JSON.

    Args:
      json: a schema, or the text of one.
      schema: the same, as a schema of the json_object.
      structural_tag: the text of an object with `structures` and `triggers`.
    """

    json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


# The decoders of the fields of requests that describe the form of an answer.
STRUCTURE_FIELDS: Final[dict[str, DecodeField]] = {
    "response_format": partial(decode_copy, ResponseFormat | None),
    "structured_outputs": partial(decode_copy, StructuredOutputs | None),
    "guided_json": partial(decode_copy, msgspec.Raw),
    "guided_regex": partial(decode_copy, str | None),
    "guided_choice": partial(decode_copy, Choices | None),
    "guided_grammar": partial(decode_copy, str | None),
}


def find_structure(
    response_format: ResponseFormat | None,
    structured_outputs: StructuredOutputs | None,
    guided_json: msgspec.Raw | None,
    guided_regex: str | None,
    guided_choice: tuple[str, ...] | None,
    guided_grammar: str | None,
) -> StructuredOutput | None:
    """Return the form that the fields of a request want; None if its answer is free.

    Raises:
      InvalidParameter: it wants several, or one is incomplete.
      NotSupported: it wants an option that does not exist.
    """
    found = _list_sent(
        _read_format(response_format),
        _read_outputs(structured_outputs),
        _read_json("guided_json", guided_json),
        _make("guided_regex", "regex", guided_regex),
        _read_choice("guided_choice", guided_choice),
        _make("guided_grammar", "grammar", guided_grammar),
    )
    if len(found) > 1:
        raise InvalidParameter(
            found[1].param, f"cannot be combined with {found[0].param}"
        )
    return found[0] if found else None


def _read_format(wanted: ResponseFormat | None) -> StructuredOutput | None:
    if wanted is None:
        return None
    param = "response_format"
    if wanted.type not in FORMAT_TYPES:
        raise InvalidParameter(f"{param}.type", list_choices(FORMAT_TYPES, wanted.type))
    if wanted.type != "json_schema" and wanted.json_schema is not None:
        raise InvalidParameter(f"{param}.json_schema", "is for the type json_schema")
    # In TGI's json_schema it is an object around the schema.
    if wanted.type == "json_schema" and has_value(wanted.value):
        raise InvalidParameter(f"{param}.value", "send json_schema")
    schemas = _list_schemas(param, wanted)
    if len(schemas) > 1:
        raise InvalidParameter(
            schemas[1].param, f"cannot be combined with {schemas[0].param}"
        )
    if wanted.type in ("text", "structural_tag") and schemas:
        raise InvalidParameter(schemas[0].param, "is for the type json_schema")
    if wanted.type == "text":
        return None
    if schemas:
        return schemas[0]
    if wanted.type == "json_object":
        return StructuredOutput(kind="json_object", param=param)
    if wanted.type == "json_schema":
        raise InvalidParameter(f"{param}.json_schema", "the schema is missing")
    if not (has_value(wanted.structures) and has_value(wanted.triggers)):
        raise InvalidParameter(param, "structural_tag needs structures and triggers")
    value = {"structures": wanted.structures, "triggers": wanted.triggers}
    return _make(param, "structural_tag", msgspec.json.encode(value).decode())


def _list_schemas(param: str, wanted: ResponseFormat) -> list[StructuredOutput]:
    named = None if wanted.json_schema is None else wanted.json_schema.schema
    return _list_sent(
        _read_json(f"{param}.json_schema", named),
        _read_json(f"{param}.schema", wanted.schema),
        _read_json(f"{param}.value", wanted.value),
    )


def _read_outputs(wanted: StructuredOutputs | None) -> StructuredOutput | None:
    if wanted is None:
        return None
    param = "structured_outputs"
    if wanted.whitespace_pattern is not None:
        raise NotSupported(
            f"{param}.whitespace_pattern", "send disable_any_whitespace, or nothing"
        )
    schema = _read_json(f"{param}.schema", wanted.schema)
    if schema is not None and not wanted.json_object:
        raise InvalidParameter(f"{param}.schema", "needs json_object; or send json")
    found = _list_sent(
        _read_json(f"{param}.json", wanted.json),
        _make(f"{param}.regex", "regex", wanted.regex),
        _read_choice(f"{param}.choice", wanted.choice),
        _make(f"{param}.grammar", "grammar", wanted.grammar),
        schema
        or _make(
            f"{param}.json_object", "json_object", "" if wanted.json_object else None
        ),
        _make(f"{param}.structural_tag", "structural_tag", wanted.structural_tag),
    )
    if len(found) != 1:
        kinds = ", ".join(get_args(StructureKind))
        raise InvalidParameter(param, f"needs exactly one of {kinds}")
    if found[0].kind in ("regex", "choice", "grammar"):
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if getattr(wanted, name):
                raise InvalidParameter(f"{param}.{name}", "is for JSON")
    return replace(
        found[0],
        whitespace=not wanted.disable_any_whitespace,
        closed=wanted.disable_additional_properties,
    )


def _list_sent(*structures: StructuredOutput | None) -> list[StructuredOutput]:
    return [each for each in structures if each is not None]


def _read_json(param: str, schema: msgspec.Raw | None) -> StructuredOutput | None:
    if schema is None or not has_value(schema):
        return None
    text = bytes(schema).decode(errors="replace")
    # vLLM takes the text of a schema, too. The decoder has checked the quotes.
    return _make(param, "json", json.loads(text) if text[0] == '"' else text)


def _read_choice(
    param: str, choices: tuple[str, ...] | None
) -> StructuredOutput | None:
    if choices is None:
        return None
    return StructuredOutput(kind="choice", choices=choices, param=param)


def _make(
    param: str, kind: StructureKind, value: str | None
) -> StructuredOutput | None:
    if value is None:
        return None
    return StructuredOutput(kind=kind, value=value, param=param)
