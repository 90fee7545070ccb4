"""Runs a chat template over a conversation.

Source: render_jinja_template in utils/chat_template_utils.py, transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .plain_data import copy_plain
from .sandbox import compile_template

# Stands behind the last message of a chat that is continued. The rendered text is cut
# there. With the space it shows whether the template trims the message.
_MARK: Final = "CONTINUE_FINAL_MESSAGE_TAG "

# The names of a message's reasoning; templates read the first one.
_REASONING_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


def render_chat(
    source: str,
    messages: Sequence[object],
    *,
    tools: Sequence[Mapping[str, object]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: Mapping[str, object],
) -> str:
    """Run a template.

    Args:
      source: the template.
      continue_final_message: end the text with the content of the last message.
      variables: further variables of the template.

    Raises:
      jinja2.TemplateError: the template refuses the messages, or is wrong.
      TypeError, ValueError: the messages cannot be rendered in this way. Templates may
        raise other errors, too.
    """
    template = compile_template(source)
    # A copy, so that the changes below do not reach the caller's messages.
    chat = [_add_reasoning_names(copy_plain(message)) for message in messages]
    final = _mark_final(chat, source) if continue_final_message else None
    text = template.render(
        messages=chat,
        tools=copy_plain(tools),
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **copy_plain(variables),
    )
    return text if final is None else _cut_behind(text, final)


def _add_reasoning_names(message: object) -> Message:
    """Give a message's reasoning the names that templates know."""
    if not isinstance(message, dict):
        raise TypeError(f"a message is not an object: {message!r}")
    found = (message.get(name) for name in _REASONING_FIELDS)
    reasoning = next((value for value in found if value is not None), None)
    if reasoning is None:
        return message
    # gpt-oss reads `thinking`.
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


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
