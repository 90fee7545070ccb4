"""Decoders of fields that may hold any JSON: template variables, tools, plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
import itertools
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter, NotSupported, list_choices
from ...types.nesting import check_nesting
from ..responses.request import TextConfig
from .counting import check_size
from .functions import check_function, drop_nulls
from .known_tools import list_known
from .lazy_fields import begins_with, decode_field
from .pieces import decode_pieces
from .structured import STRUCTURE_FIELDS, has_value
from .tool_choice import (
    AllowedTools,
    FlatAllowedTools,
    FlatNamedTool,
    FlatToolChoice,
    NamedTool,
    ToolChoice,
    ToolMode,
)

# Bounds on the memory of one request: a byte of free-form JSON can become thirty bytes of
# objects. Templates and plug-ins need a few flags. The tools of the largest agents that
# were seen take 100 kB.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384
MAX_TOOLS_BYTES: Final = 262_144
MAX_LOGITS_PROCESSORS_BYTES: Final = 16_384
# They take one or two milliseconds. In schemas, each has twenty bytes or more.
_MAX_FREE_CONTAINERS: Final = 16_384
# Four times what a grammar may have (grammar/limits.py): JSON may be indented.
MAX_STRUCTURE_BYTES: Final = 1_048_576


def decode_template_kwargs(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, object] | None:
    """Decode the variables of a chat template.

    Raises:
      InvalidParameter: the value is not an object, or is too large or too deep.
    """
    kwargs: dict[str, object] | None = decode_free_form(
        name, raw, dict[str, object] | None, MAX_TEMPLATE_KWARGS_BYTES
    )
    return kwargs


def decode_tools(
    name: str, raw: msgspec.Raw, max_tokens: int, *, ignores_unknown: bool = False
) -> tuple[dict[str, object], ...] | None:
    """Decode the functions that a model may call.

    Args:
      ignores_unknown: whether tools that are not functions are left out.

    Raises:
      InvalidParameter: a tool has no name, or a field of the wrong type, or the tools are
        too large or too deep.
      NotSupported: a tool is not a function.
    """
    tools = list_known(
        name,
        decode_any_tools(name, raw),
        ("function", None),
        ignores_unknown=ignores_unknown,
    )
    return tuple(itertools.starmap(_read_tool, tools)) or None


def decode_flat_tools(
    name: str, raw: msgspec.Raw, max_tokens: int, *, ignores_unknown: bool = False
) -> tuple[dict[str, object], ...] | None:
    """Decode the same as the Responses API writes it."""
    tools = []
    for path, tool in list_known(
        name,
        decode_any_tools(name, raw),
        ("function",),
        ignores_unknown=ignores_unknown,
    ):
        check_function(path, tool)
        tools.append(tool)
    return tuple(tools) or None


def decode_any_tools(name: str, raw: msgspec.Raw) -> tuple[dict[str, object], ...]:
    """Decode tools of any form.

    Raises:
      InvalidParameter: the tools are no list of objects, or are too large or too deep.
    """
    tools: tuple[dict[str, object], ...] | None = decode_free_form(
        name, raw, tuple[dict[str, object], ...] | None, MAX_TOOLS_BYTES
    )
    return tools or ()


def _decode_choice(name: str, raw: msgspec.Raw, kinds: Mapping[str, type]) -> Any:
    if not begins_with(raw, b"{"):
        return decode_field(name, raw, ToolMode | None)
    fields: dict[str, object] = decode_free_form(
        name, raw, dict[str, object], MAX_TOOLS_BYTES
    )
    kind = fields.get("type", "function")
    if not isinstance(kind, str) or kind not in kinds:
        raise NotSupported(f"{name}.type", list_choices(kinds, kind))
    return decode_field(name, raw, kinds[kind])


def _read_tool(path: str, tool: dict[str, object]) -> dict[str, object]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidParameter(f"{path}.function", "must be an object")
    check_function(f"{path}.function", function)
    return tool | {"function": drop_nulls(function)}


def decode_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> ToolChoice | None:
    """Decode a mode, or the names of one or several tools.

    Raises:
      InvalidParameter: it is neither.
      NotSupported: it is a choice of another type.
    """
    kinds = {"function": NamedTool, "allowed_tools": AllowedTools}
    choice: ToolChoice | None = _decode_choice(name, raw, kinds)
    return choice


def decode_flat_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> FlatToolChoice | None:
    """Decode the same as the Responses API writes it."""
    kinds = {"function": FlatNamedTool, "allowed_tools": FlatAllowedTools}
    choice: FlatToolChoice | None = _decode_choice(name, raw, kinds)
    return choice


def decode_processors(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, dict[str, object] | None] | None:
    """Decode the names of the logits processors and their arguments.

    Raises:
      InvalidParameter: the value is not an object of objects, or is too large or too
        deep.
    """
    # The field was a list in old versions of vLLM, and clients send an empty one.
    if begins_with(raw, b"[") and not bytes(raw)[1:-1].strip():
        return None
    named: dict[str, dict[str, object] | None] | None = decode_free_form(
        name,
        raw,
        dict[str, dict[str, object] | None] | None,
        MAX_LOGITS_PROCESSORS_BYTES,
    )
    return named


def decode_structure(name: str, raw: msgspec.Raw, max_tokens: int) -> Any:
    """Decode one of STRUCTURE_FIELDS.

    Raises:
      InvalidParameter: the value has another type, or is too long.
    """
    return decode_copy(name, raw, STRUCTURE_FIELDS[name])


def decode_text_config(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> TextConfig | None:
    """Decode the options of a response's text, which may have a schema.

    Raises:
      InvalidParameter: the value has another type, or is too long.
    """
    config: TextConfig | None = decode_copy(name, raw, TextConfig)
    return config


def decode_copy(name: str, raw: msgspec.Raw, kind: Any) -> Any:
    """Decode a form of answers, which may have parts that stay bytes.

    Raises:
      InvalidParameter: the value has another type, or is too long.
    """
    if len(memoryview(raw)) > MAX_STRUCTURE_BYTES:
        raise InvalidParameter(name, f"at most {MAX_STRUCTURE_BYTES} bytes are allowed")
    if not has_value(raw):
        return None
    # From a copy, because the parts that stay bytes would hold the whole body.
    return decode_pieces(name, bytes(raw), kind)


def decode_free_form(name: str, raw: msgspec.Raw, kind: Any, max_bytes: int) -> Any:
    """Decode a field that may contain any JSON.

    Raises:
      InvalidParameter: the value has another type, or is too large or too deep.
    """
    if len(memoryview(raw)) > max_bytes:
        raise InvalidParameter(name, f"at most {max_bytes} bytes are allowed")
    check_size(
        name, raw, max_containers=_MAX_FREE_CONTAINERS, few_bytes=_MAX_FREE_CONTAINERS
    )
    value = decode_field(name, raw, kind)
    check_nesting(name, value)
    return value
