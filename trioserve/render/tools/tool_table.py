"""The tools of a request, as scanners look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .schema_cases import list_types

_EMPTY: Final[Mapping[str, object]] = {}


class ToolTable:
    """The tools by name.

    Args:
      tools: {"type": "function", "function": {"name": ..., "parameters": ...}} each. They
        come from clients: whatever has another form is passed over.
    """

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        functions = (_mapping(tool.get("function")) for tool in tools)
        self._parameters = {
            function["name"]: _mapping(function.get("parameters"))
            for function in functions
            if isinstance(function.get("name"), str)
        }

    @property
    def has_any(self) -> bool:
        """True if there are tools."""
        return bool(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def find_types(self, name: str, parameter: str) -> frozenset[str]:
        """Return the JSON types that a parameter of a tool may have.

        They are empty if the schema does not tell.
        """
        schema = self._parameters.get(name, _EMPTY)
        others = schema.get("additionalProperties")
        part = _mapping(schema.get("properties")).get(parameter, others)
        return list_types(schema, part)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else _EMPTY
