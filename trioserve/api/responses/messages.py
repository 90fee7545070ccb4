"""From the items of a Responses request to the messages of a chat, and back in errors.

One answer of the model may be several items: reasoning, a message and calls. They become
one message, as the answer of a chat has them, so that the template shows the model the
same history.

A call that is incomplete is left out, and so is its result: templates take whole calls
alone. The turn of the assistant stays, even if nothing is left in it, because some
templates want turns that alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
import re
from typing import Final

from ...errors import ContextLengthExceeded, RequestError
from ..shared.messages import ContentPart, FunctionCall, Message, ToolCall
from ..shared.tools import flatten_tool_path
from .items import Content, InputItem, InputPart
from .tools import name_for_model

# The source of a message that is not an item of the request.
_NO_ITEM: Final = -1

# The names of chats' fields that are called otherwise here.
_RESPONSE_NAMES: Final[Mapping[str | None, str]] = {
    "max_completion_tokens": "max_output_tokens",
    "prompt": "input",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
}

# A message in the name of a chat's field.
_CHAT_MESSAGE: Final = re.compile(r"messages\[(\d+)\][^:]*")


def to_messages(
    items: Sequence[InputItem], instructions: str | None
) -> tuple[tuple[Message, ...], tuple[int, ...]]:
    """Convert items that were checked.

    Args:
      instructions: become a system message before all others.

    Returns:
      the messages, and for each of them the index of its first item, or _NO_ITEM.
    """
    writer = _Writer()
    if instructions is not None:
        writer.write(Message(role="system", content=instructions), _NO_ITEM)
    for index, item in enumerate(items):
        writer.add(item, index)
    writer.end_answer()
    return tuple(writer.messages), tuple(writer.sources)


class _Writer:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sources: list[int] = []
        self._answer: _Answer | None = None
        # The ids of the calls that are left out.
        self._cut_calls: set[str | None] = set()

    def write(self, message: Message, source: int) -> None:
        self.messages.append(message)
        self.sources.append(source)

    def end_answer(self) -> None:
        if self._answer is not None:
            self.write(self._answer.to_message(), self._answer.source)
        self._answer = None

    def add(self, item: InputItem, index: int) -> None:
        match item.kind:
            case "reasoning":
                if self._answer is None or not self._answer.is_thinking:
                    self._begin_answer(index)
                self._get_answer(index).reasoning.append(_read_reasoning(item))
            case "function_call":
                self._add_call(item, index)
            case "function_call_output":
                self._add_result(item, index)
            case _:
                self._add_message(item, index)

    def _add_call(self, item: InputItem, index: int) -> None:
        answer = self._get_answer(index)
        if item.is_cut:
            self._cut_calls.add(item.call_id)
        else:
            answer.calls.append(_to_call(item))

    def _add_result(self, item: InputItem, index: int) -> None:
        self.end_answer()
        if item.call_id not in self._cut_calls:
            message = Message(
                role="tool",
                content=_to_content(item.output),
                tool_call_id=item.call_id,
            )
            self.write(message, index)

    def _add_message(self, item: InputItem, index: int) -> None:
        content = _to_content(item.content)
        if item.role != "assistant":
            self.end_answer()
            # Invariant: check_items allows the roles of chats alone.
            self.write(Message(role=item.role, content=content), index)  # type: ignore[arg-type]
            return
        if self._answer is None or not self._answer.is_thinking:
            self._begin_answer(index)
        self._get_answer(index).content = content

    def _begin_answer(self, index: int) -> None:
        self.end_answer()
        self._answer = _Answer(index)

    def _get_answer(self, index: int) -> _Answer:
        if self._answer is None:
            self._answer = _Answer(index)
        return self._answer


class _Answer:
    """The items of one answer of the model."""

    def __init__(self, source: int) -> None:
        self.source = source
        self.reasoning: list[str] = []
        self.content: str | tuple[ContentPart, ...] | None = None
        self.calls: list[ToolCall] = []

    @property
    def is_thinking(self) -> bool:
        """True if it has nothing but reasoning so far."""
        return self.content is None and not self.calls

    def to_message(self) -> Message:
        return Message(
            role="assistant",
            content=self.content,
            reasoning="\n".join(self.reasoning) or None,
            tool_calls=tuple(self.calls) or None,
        )


def _to_content(content: Content | None) -> str | tuple[ContentPart, ...] | None:
    if not isinstance(content, tuple):
        return content
    # Most clients send a text as a list with one part. Chats have it as a string.
    if len(content) == 1 and content[0].type != "input_image":
        return content[0].text
    return tuple(map(_to_part, content))


def _to_part(part: InputPart) -> ContentPart:
    if part.type != "input_image":
        return ContentPart(type="text", text=part.text)
    return ContentPart(type="image_url", image_url=part.image_url)


def _read_reasoning(item: InputItem) -> str:
    parts = item.content or item.summary or ()
    if isinstance(parts, str):
        return parts
    return "\n".join(part.text or "" for part in parts)


def _to_call(item: InputItem) -> ToolCall:
    name = name_for_model(item.name or "", item.namespace)
    return ToolCall(
        id=item.call_id,
        function=FunctionCall(name=name, arguments=item.arguments),
    )


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
    if index == _NO_ITEM:
        return "instructions"
    if index < num_earlier:
        return "previous_response_id"
    return f"input[{index - num_earlier}]"


def _rename(error: RequestError, name: str) -> None:
    # The message begins with the field.
    text = str(error).replace(error.param or "", name, 1)
    error.args, error.param = (text,), name
