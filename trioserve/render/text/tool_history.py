"""Earlier tool calls of a conversation, and their results.

A model that does not see its own calls misunderstands the results. So a call or a
result that the template would leave out is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from typing import Any, Final

from ...errors import InvalidParameter
from ...types.nesting import check_nesting, refuse_nesting
from .rendering import read_fields
from .template_form import TemplateForm, text_part
from .tool_prompt import write_calls

# The JSON decoder holds the GIL: for 13 seconds over 48 MiB of empty lists, and for 10
# to 20 ms over this many characters. The tools of a request have the same limit
# (api/shared/tools.py). A file of a thousand lines, which an agent may write, has a
# sixth of these characters.
MAX_ARGUMENTS: Final = 262_144


class ToolHistory:
    """Converts the calls and results of one conversation to the template's form."""

    def __init__(self, form: TemplateForm) -> None:
        self._form = form
        # Names of the tools that were called, by the ids of the calls.
        self._called: dict[str, str] = {}

    def read_calls(
        self, message: dict[str, Any], param: str, *, has_content: bool
    ) -> None:
        """Check a message's `tool_calls`, and convert them, and its content if needed.

        Args:
          message: its content is in the template's form already.
          param: the field of the calls in the request, for errors.
          has_content: the client sent some content, which may be empty.

        Raises:
          InvalidParameter: a call is wrong, or the template would not show it.
        """
        calls = message["tool_calls"]
        if message["role"] != "assistant":
            raise InvalidParameter(param, "only an assistant calls tools")
        if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
            raise InvalidParameter(param, "must be a list")
        read = [self._read_call(call, f"{param}[{i}]") for i, call in enumerate(calls)]
        if self._form.writes_calls:
            del message["tool_calls"]
            message["content"] = write_calls(message["content"], read)
            return
        if len(read) > 1 and not self._form.shows_all_calls:
            raise InvalidParameter(
                param,
                "the model's chat template has a place for only one call in a message",
            )
        message["tool_calls"] = read
        if self._form.joins_reasoning:
            _join_reasoning(message)
        message["content"] = self._place(message["content"], param, has_content)

    def read_result(self, message: dict[str, object], param: str) -> None:
        """Check a message of the role `tool`, and add the name of the called tool.

        OpenAI's clients send only the id of the call; some templates want the name.

        Raises:
          InvalidParameter: the template would not show it.
        """
        if not (self._form.shows_results or self._form.writes_results):
            raise InvalidParameter(
                f"{param}.role",
                "the model's chat template has no place for results of tools",
            )
        called = self._called.get(str(message.get("tool_call_id")))
        if called is not None:
            message.setdefault("name", called)

    def _read_call(self, call: object, param: str) -> dict[str, Any]:
        fields = read_fields(call, param)
        function = read_fields(fields.get("function"), f"{param}.function")
        name = function.get("name")
        if not isinstance(name, str):
            raise InvalidParameter(f"{param}.function.name", "must be a string")
        self._called[str(fields.get("id"))] = name
        arguments = self._read_arguments(
            function.get("arguments"), f"{param}.function.arguments"
        )
        return {**fields, "function": {**function, "arguments": arguments}}

    def _read_arguments(self, sent: object, param: str) -> object:
        """Return arguments, which OpenAI's API carries as JSON in a string.

        Most templates print the object. Others, such as DeepSeek's, concatenate the
        string with their text.
        """
        if sent is None or sent == "":
            sent = {}
        is_text = isinstance(sent, str)
        try:
            arguments = _decode(str(sent), param) if is_text else sent
        except ValueError:
            return self._show_broken(str(sent))
        check_nesting(param, arguments)
        if not (self._form.takes_arguments_as_text or self._form.writes_calls):
            return arguments
        # The client's own text stays unchanged, so that the prefix cache finds it.
        return sent if is_text else json.dumps(arguments, ensure_ascii=False)

    def _show_broken(self, text: str) -> object:
        """Return arguments that are not JSON, for example cut off by max_tokens.

        The model sees its own text, also where a template lists the items of an object.
        """
        form = self._form
        if form.shows_broken_arguments or form.writes_calls:
            return text
        return {"arguments": text}

    def _place(self, content: object, param: str, has_content: bool) -> object:
        """Return the content with which the template shows the message's calls."""
        shown = self._form.shows_calls_beside
        is_empty = content in ("", [], [text_part("")])
        if is_empty and "none" in shown and not (has_content and "empty" in shown):
            return None
        if ("empty" if is_empty else "text") in shown:
            return content
        where = f" in a message {'without' if is_empty else 'with'} content"
        raise InvalidParameter(
            param,
            f"the model's chat template has no place for calls{where if shown else ''}",
        )


def _join_reasoning(message: dict[str, Any]) -> None:
    """Make the text of a message the end of its reasoning, if it has both."""
    reasoning, text = message.get("reasoning_content"), message["content"]
    if reasoning and text and isinstance(text, str):
        message["reasoning"] = message["reasoning_content"] = f"{reasoning}\n{text}"
        message["content"] = ""


def _decode(text: str, param: str) -> object:
    """Decode arguments.

    Raises:
      ValueError: they are not JSON.
      InvalidParameter: they are too long, or nested too deeply.
    """
    if len(text) > MAX_ARGUMENTS:
        raise InvalidParameter(param, f"at most {MAX_ARGUMENTS} characters are taken")
    try:
        return json.loads(text)
    except RecursionError:
        raise refuse_nesting(param) from None
