"""The names of a response's fields, for the errors of the chat that answers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
import re
from typing import Final

from ...errors import ContextLengthExceeded, RequestError
from ..shared.tools import flatten_tool_path
from .messages import NO_ITEM

# The names of chats' fields that are called otherwise here.
_RESPONSE_NAMES: Final[Mapping[str | None, str]] = {
    "max_completion_tokens": "max_output_tokens",
    "prompt": "input",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}

# A message in the name of a chat's field.
_CHAT_MESSAGE: Final = re.compile(r"messages\[(\d+)\][^:]*")


@contextmanager
def naming_fields(sources: Sequence[int], num_earlier: int) -> Iterator[None]:
    """Let errors of a chat name the fields of the response that it answers.

    Args:
      sources: the index of the item of each message, from `to_messages`.
      num_earlier: the number of items that came from the previous response.
    """
    try:
        yield
    except RequestError as error:
        if isinstance(error, ContextLengthExceeded):
            # Its message has no name.
            error.param = _RESPONSE_NAMES.get(error.param, error.param)
        elif found := _CHAT_MESSAGE.match(error.param or ""):
            name = _name_source(sources[int(found[1])], num_earlier)
            _rename(error, name)
        elif error.param and flatten_tool_path(error.param) != error.param:
            _rename(error, flatten_tool_path(error.param))
        elif error.param in _RESPONSE_NAMES:
            _rename(error, _RESPONSE_NAMES[error.param])
        raise


def _name_source(index: int, num_earlier: int) -> str:
    if index == NO_ITEM:
        return "instructions"
    if index < num_earlier:
        return "previous_response_id"
    return f"input[{index - num_earlier}]"


def _rename(error: RequestError, name: str) -> None:
    # The message begins with the field.
    text = str(error).replace(error.param or "", name, 1)
    error.args, error.param = (text,), name
