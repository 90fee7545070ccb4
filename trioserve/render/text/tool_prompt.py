"""Tools, calls and results as text, for chat templates that have no place for them.

The words and the form come from Qwen 2.5's template, which many models have seen. A model
answers with calls that the scanner of Hermes reads (tools/hermes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any, Final

from .template_form import TemplateForm, text_part

_INTRODUCTION: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def add_tools(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Mapping[str, object]],
    form: TemplateForm,
) -> list[dict[str, Any]]:
    """Describe tools in the system message.

    They are in the first message of the user if the template shows no system message.

    Args:
      messages: at least one, in the template's form; they are not changed.
    """
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools="\n".join(lines))
    if not form.shows_system:
        return _add_to_user(messages, text)
    first = messages[0]
    if first["role"] == "system":
        content = surround(first["content"], after=f"\n\n{text}")
        return [{**first, "content": content}, *messages[1:]]
    content = text if form.takes_strings else [text_part(text)]
    return [{"role": "system", "content": content}, *messages]


def write_calls(content: object, calls: Sequence[Mapping[str, Any]]) -> object:
    """Add calls to the content of their message.

    Args:
      calls: their arguments are JSON in a string.
    """
    texts = []
    for call in calls:
        name = json.dumps(call["function"]["name"], ensure_ascii=False)
        arguments = call["function"]["arguments"]
        texts.append(
            f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
        )
    separator = "" if content in ("", [], [text_part("")]) else "\n"
    return surround(content, after=separator + "\n".join(texts))


def write_result(content: object) -> object:
    """Return the content of a message of the user that has the result of a call."""
    return surround(content, "<tool_response>\n", "\n</tool_response>")


def surround(content: object, before: str = "", after: str = "") -> object:
    """Put texts before and behind a content, which is a text or a list of parts."""
    if isinstance(content, str):
        return before + content + after
    assert isinstance(content, list), "templates read texts or lists of parts"
    begin, end = ([text_part(text)] if text else [] for text in (before, after))
    return [*begin, *content, *end]


def _add_to_user(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    described = list(messages)
    for index, message in enumerate(messages):
        if message["role"] == "user":
            content = surround(message["content"], before=f"{text}\n\n")
            described[index] = {**message, "content": content}
            break
    return described
