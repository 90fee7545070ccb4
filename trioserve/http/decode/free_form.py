"""Decoders of fields that may hold any JSON: template variables, tools, plug-ins."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from . import unsupported
from ...errors import InvalidParameter
from ...render.text.nesting import check_nesting
from .lazy_fields import begins_with, decode_field
from .requests import ToolChoice

# Bounds on what one request makes us build: a byte of free-form JSON can become thirty
# bytes of objects. Templates need a few flags, and so do plug-ins; the tools of the
# largest agents that were seen take 100 kB.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384
MAX_TOOLS_BYTES: Final = 262_144
MAX_LOGITS_PROCESSORS_BYTES: Final = 16_384


def decode_template_kwargs(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, object] | None:
    """Decode what templates are told; `later` of a BodyDecoder.

    Raises:
      InvalidParameter: it is no object, or a large or deep one.
    """
    kwargs: dict[str, object] | None = _decode_free_form(
        name, raw, dict[str, object] | None, MAX_TEMPLATE_KWARGS_BYTES
    )
    return kwargs


def decode_tools(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[dict[str, object], ...] | None:
    tools: tuple[dict[str, object], ...] | None = _decode_free_form(
        name, raw, tuple[dict[str, object], ...] | None, MAX_TOOLS_BYTES
    )
    return tools or None


def decode_tool_choice(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> ToolChoice | None:
    """Decode whether the model sees the tools.

    Raises:
      NotSupported: the model shall call one: no output can be forced yet.
    """
    unsupported.refuse(name, raw, get_args(ToolChoice))
    choice: ToolChoice | None = decode_field(name, raw, ToolChoice | None)
    return choice


def decode_processors(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> dict[str, dict[str, object] | None] | None:
    """Decode which plug-ins take part, and their arguments.

    Raises:
      InvalidParameter: it is no object of objects, or a large or deep one.
    """
    # vLLM's field was once a list, and client libraries send an empty one.
    if begins_with(raw, b"[") and not bytes(raw)[1:-1].strip():
        return None
    named: dict[str, dict[str, object] | None] | None = _decode_free_form(
        name,
        raw,
        dict[str, dict[str, object] | None] | None,
        MAX_LOGITS_PROCESSORS_BYTES,
    )
    return named


def _decode_free_form(name: str, raw: msgspec.Raw, kind: Any, max_bytes: int) -> Any:
    """Decode a field whose objects may hold anything.

    Raises:
      InvalidParameter: it is of another kind, or large, or nested too deeply.
    """
    if len(memoryview(raw)) > max_bytes:
        raise InvalidParameter(name, f"at most {max_bytes} bytes are taken")
    value = decode_field(name, raw, kind)
    check_nesting(name, value)
    return value
