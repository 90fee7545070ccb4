"""Runs a chat template over a conversation, whose messages become plain data first.

Programs may put rich objects into messages, such as images and arrays. Their methods
are unknown to the sandbox, and some of them write files. So templates get the types of
JSON alone.

Source: render_jinja_template and _plain_template_data in utils/chat_template_utils.py,
transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import sys
from typing import Any, Final

import jinja2
import msgspec

from ...errors import InvalidParameter
from .sandbox import compile_template

# Stands behind the last message of a chat that is continued. The rendered text is cut
# there. With the space it shows whether the template trims the message.
_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "

# The names of a message's reasoning; templates read the first one.
_REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]

# Errors that say that a template was not written for the client's messages: all but a
# lack of memory.
_TEMPLATE_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# A reason may quote the whole chat. Its beginning is enough for a client.
_MAX_REASON_CHARACTERS: Final = 300


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCall:
    """One run of a template, as plain values that can cross to another process.

    Args:
      source: the template.
      continue_final_message: end the text with the content of the last message.
      variables: further variables of the template.
    """

    source: str
    messages: list[Message]
    tools: list[Mapping[str, object]] | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    variables: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def render(self) -> str:
        """Run the template.

        Raises:
          InvalidParameter: it refuses these messages.
        """
        try:
            template = compile_template(self.source)
            # A copy, so that the changes below do not reach the caller's messages.
            chat = [_name_reasoning(copy_plain(message)) for message in self.messages]
            final = None
            if self.continue_final_message:
                final = _mark_final(chat, self.source)
            text = template.render(
                messages=chat,
                tools=copy_plain(self.tools),
                documents=None,
                add_generation_prompt=self.add_generation_prompt,
                **copy_plain(self.variables),
            )
            return text if final is None else _cut_behind(text, final)
        except _TEMPLATE_ERRORS as error:
            raise InvalidParameter(
                "messages", f"the chat template refuses them: {_shorten(error)}"
            ) from None


def _shorten(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself too deeply"
    reason = str(error) or type(error).__name__
    return reason[:_MAX_REASON_CHARACTERS]


def _name_reasoning(message: object) -> Message:
    """Give a message's reasoning the names that templates know."""
    if not isinstance(message, dict):
        raise TypeError(f"a message is not an object: {message!r}")
    for name in _REASONING_FIELDS:
        if (reasoning := message.get(name)) is not None:
            # gpt-oss reads `thinking`.
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _mark_final(chat: list[Message], source: str) -> str:
    """Put the mark behind the text of the last message, and return the text."""
    if not chat:
        raise ValueError("there is no message to continue")
    content = chat[-1].get("content")
    if content is None:
        raise ValueError("the last message has no content to continue")
    if "content" not in source:
        raise ValueError("the template reads no content that could be continued")
    if not isinstance(content, (list, tuple)):
        chat[-1]["content"] = content + _MARK
        return str(content)
    for part in reversed(content):
        if "text" in part:
            text: str = part["text"]
            part["text"] = text + _MARK
            return text
    raise ValueError("the last message has no text to continue")


def _cut_behind(text: str, final: str) -> str:
    """Cut a rendered chat behind its last message.

    Args:
      final: the text of that message.
    """
    mark = _MARK.strip()
    if final.strip() not in text or mark not in text:
        raise ValueError("the template leaves out the message to continue")
    end = text.rindex(mark)
    if text.startswith(_MARK, end):
        return text[:end]
    # The template trims the message, so it would trim its end without the mark, too.
    return text[:end].rstrip()


def read_fields(value: object, param: str) -> dict[str, object]:
    """Return a new dict of an object's fields.

    Raises:
      InvalidParameter: the value is not an object.
    """
    if isinstance(value, Mapping):
        return dict(value)
    # to_builtins would return strings and None unchanged.
    plain = value is None or isinstance(value, (str, bytes))
    fields = value if plain else msgspec.to_builtins(value)
    if not isinstance(fields, dict):
        raise InvalidParameter(param, "must be an object")
    return fields


def copy_plain(value: object) -> Any:
    """Copy a value as scalars, lists, tuples and dicts.

    An object without fields becomes the name of its type, such as "<ndarray>".
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        # Subclasses may have further methods; this returns a plain string.
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {copy_plain(key): copy_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [copy_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return _copy_object(value)


def _copy_object(value: object) -> Any:
    # A value of NumPy exists only if NumPy has been imported.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return copy_plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: copy_plain(getattr(value, field.name)) for field in fields}
    # Pydantic's models have this method.
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return copy_plain(dump())
    return f"<{type(value).__name__}>"
