"""Structural tags: free text with parts whose form is fixed, such as calls of functions.

A part begins with one of the `begin` strings, holds JSON of its schema, and ends with its
`end` string. The model may write any text around the parts. Each `begin` starts with a
trigger; once the model has written a trigger, it must go on with one of its parts.

Source: vLLM's structured_outputs.structural_tag, the form with `structures` and `triggers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llguidance import StructTag
import msgspec

from ..errors import InvalidParameter
from ..types.nesting import check_nesting
from ..types.structured import StructuredOutput
from .schema_parts import close_objects, drop_unknown_formats

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


class _Structure(msgspec.Struct, frozen=True, kw_only=True):
    begin: str
    end: str
    schema: dict[str, Any] = {}


class _Tags(msgspec.Struct, frozen=True, kw_only=True):
    structures: tuple[_Structure, ...]
    triggers: tuple[str, ...]


def write_structural_tag(
    structure: StructuredOutput, options: JsonCompileOptions
) -> str:
    """Return the grammar of a text with tags.

    Args:
      options: llguidance's for JSON.

    Raises:
      InvalidParameter: a tag is wrong.
    """
    try:
        tags = msgspec.json.decode(structure.value, type=_Tags)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(structure.param, str(error)) from None
    if not tags.structures:
        raise InvalidParameter(structure.param, "needs at least one structure")
    return StructTag.to_grammar(
        [
            _make_tag(each, tags.triggers, structure, options)
            for each in tags.structures
        ],
        # The device's tokenizer says which tokens are special. Tags are matched as text.
        assume_special=False,
    )


def _make_tag(
    each: _Structure,
    triggers: tuple[str, ...],
    structure: StructuredOutput,
    options: JsonCompileOptions,
) -> StructTag:
    trigger = next((t for t in triggers if t and each.begin.startswith(t)), None)
    if trigger is None:
        raise InvalidParameter(
            structure.param, f"no trigger begins {each.begin[:64]!r}"
        )
    check_nesting(structure.param, each.schema)
    schema = drop_unknown_formats(each.schema)
    if structure.closed:
        schema = close_objects(schema)
    return StructTag(
        trigger=trigger,
        begin=each.begin,
        grammar={**schema, "x-guidance": options},
        end=each.end,
    )
