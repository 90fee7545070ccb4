"""The field `output_config` of Anthropic's API."""

from __future__ import annotations

import msgspec

from ...errors import InvalidParameter
from ...render import ReasoningEffort
from ..shared.structured import JsonSchemaFormat, ResponseFormat


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer.

    Args:
      type: json_schema.
      schema: stays bytes, as in chats.
    """

    type: str
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The effort and the form of the answer.

    Args:
      effort: as reasoning_effort of chats.
    """

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format.type != "json_schema":
            raise InvalidParameter("output_config.format.type", "must be json_schema")

    def to_response_format(self) -> ResponseFormat | None:
        """Return the form in the words of chats."""
        if self.format is None:
            return None
        schema = JsonSchemaFormat(schema=self.format.schema)
        return ResponseFormat(type="json_schema", json_schema=schema)
