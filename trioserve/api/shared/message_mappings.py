"""Checks messages, and gives them and the options of their template in the renderer's form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter, NotSupported, list_choices
from ...render import TURN_CHARACTERS, ChatOptions, ReasoningEffort
from ...render.text.tool_history import MAX_ARGUMENTS
from ..decode.values import begins_with, decode_field, decode_free_form, read_string
from .messages import ContentPart, ImageUrl, Message
from .tools import ToolChoice, list_shown

# Templates need a few flags.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384

_PART_TYPES: Final = ("text", "image_url", "prompt_embeds")


class LazyMappings(Sequence[dict[str, object]]):
    """A sequence of plain mappings, one for each message.

    Each mapping is made when it is read. The renderer reads it in the thread of a worker,
    because there may be thousands of messages and megabytes of payloads.
    """

    @property
    @abstractmethod
    def num_characters(self) -> int:
        """The approximate length of their text, without images and tensors."""

    @abstractmethod
    def list_sizes(self) -> Iterator[int]:
        """Yield the numbers of texts, images and the like that num_characters looks at."""

    def has_more_parts(self, limit: int) -> bool:
        """Return whether there are more parts than a number, without a look at the rest."""
        num_parts = 0
        for number in self.list_sizes():
            num_parts += number
            if num_parts > limit:
                return True
        return False

    @abstractmethod
    def make(self, index: int) -> dict[str, object]:
        """Make a mapping; the index is not negative.

        Raises:
          RequestError: the message is wrong; `param` begins with messages[index].
        """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.make(range(len(self))[index])


class MessageMappings(LazyMappings):
    """The messages of a chat.

    Raises:
      InvalidParameter: on reading: the URL of an image, or a tensor, is not a string.
      NotSupported: on reading: the client wants an image in low detail.
    """

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages

    @cached_property
    def num_characters(self) -> int:
        num_characters = TURN_CHARACTERS * len(self._messages)
        for message in self._messages:
            for text in (message.content, message.reasoning, message.reasoning_content):
                if isinstance(text, str):
                    num_characters += len(text)
            for part in message.content if isinstance(message.content, tuple) else ():
                num_characters += len(part.text or "")
            for call in message.tool_calls or ():
                num_characters += len(call.function.arguments or "")
        return num_characters

    def list_sizes(self) -> Iterator[int]:
        for message in self._messages:
            yield len(message.content) if isinstance(message.content, tuple) else 1

    def __len__(self) -> int:
        return len(self._messages)

    def make(self, index: int) -> dict[str, object]:
        message = self._messages[index]
        content: object = message.content
        if isinstance(message.content, tuple):
            path = f"messages[{index}].content"
            content = [
                _to_part(part, f"{path}[{i}]") for i, part in enumerate(message.content)
            ]
        mapping: dict[str, object] = {"role": message.role, "content": content}
        for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            if (text := getattr(message, name)) is not None:
                mapping[name] = text
        if message.tool_calls:
            mapping["tool_calls"] = list(map(msgspec.to_builtins, message.tool_calls))
        return mapping


class TemplateFields:
    """The fields of a request that are inputs of the chat template; a base of its struct."""

    __slots__ = ()

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: dict[str, object] | None
    reasoning_effort: ReasoningEffort | None
    tools: tuple[dict[str, object], ...] | None
    tool_choice: ToolChoice | None

    @property
    def adds_generation_prompt(self) -> bool:
        """True if the assistant's turn is opened; not where a message goes on."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]:
        """The tools that the model sees."""
        return list_shown(self.tool_choice, self.tools) if self.tools else ()


def to_chat_options(request: TemplateFields) -> ChatOptions:
    """Return the inputs of the chat template besides the messages."""
    return ChatOptions(
        add_generation_prompt=request.adds_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        variables=request.chat_template_kwargs or {},
        reasoning_effort=request.reasoning_effort,
        tools=request.shown_tools,
        chat_template=request.chat_template,
    )


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


def decode_arguments(param: str, raw: msgspec.Raw) -> dict[str, object]:
    """Decode the arguments of an earlier call, which some APIs carry as an object.

    Raises:
      InvalidParameter: they are too long, or not an object.
    """
    if len(memoryview(raw)) > MAX_ARGUMENTS:
        raise InvalidParameter(param, f"at most {MAX_ARGUMENTS} bytes are taken")
    arguments: dict[str, object] = decode_field(param, raw, dict[str, object])
    return arguments


def _to_part(part: ContentPart, path: str) -> dict[str, object]:
    match part.type:
        case "image_url":
            url = _read_image_url(part.image_url, f"{path}.image_url")
            return {"type": "image_url", "image_url": {"url": url}}
        case "prompt_embeds":
            payload = read_string(f"{path}.prompt_embeds", part.prompt_embeds)
            return {"type": "prompt_embeds", "prompt_embeds": payload}
    return {"type": "text", "text": part.text}


def _read_image_url(raw: msgspec.Raw, path: str) -> memoryview:
    # OpenAI's form is an object, but some clients send the URL itself.
    if begins_with(raw, b'"'):
        return read_string(path, raw)
    image: ImageUrl = decode_field(path, raw, ImageUrl)
    if not image.wants_detail:
        raise NotSupported(
            f"{path}.detail", "images are always used in full detail; send auto"
        )
    return read_string(f"{path}.url", image.url)


def check_messages(messages: tuple[Message, ...], param: str = "messages") -> None:
    """Refuse messages without content, and content that the server does not support.

    Args:
      param: the field that contains the messages.

    Raises:
      InvalidParameter: a message, or a part of one, is empty.
      NotSupported: a message contains audio, video, files, a refusal, or calls in the
        old form.
    """
    for index, message in enumerate(messages):
        path = f"{param}[{index}]"
        if message.function_call is not None:
            raise NotSupported(f"{path}.function_call")
        if message.audio is not None:
            raise NotSupported(f"{path}.audio")
        if message.refusal:
            raise NotSupported(f"{path}.refusal", "send it as content")
        # The assistant's content may be null: it may have called tools only.
        if message.content is None and message.role != "assistant":
            raise InvalidParameter(f"{path}.content", "is required")
        if isinstance(message.content, tuple):
            _check_parts(f"{path}.content", message.content)


def _check_parts(path: str, parts: tuple[ContentPart, ...]) -> None:
    for index, part in enumerate(parts):
        if part.type not in _PART_TYPES:
            raise NotSupported(
                f"{path}[{index}].type", list_choices(_PART_TYPES, part.type)
            )
        # Each type of part has its content in the field of the same name.
        if getattr(part, part.type) in (None, msgspec.Raw()):
            raise InvalidParameter(f"{path}[{index}].{part.type}", "is required")


def check_continuation(adds_prompt: bool | None, continues: bool | None) -> None:
    """Refuse a request that both opens a new turn and continues the last one.

    Raises:
      InvalidParameter
    """
    if adds_prompt and continues:
        raise InvalidParameter(
            "continue_final_message", "cannot be combined with add_generation_prompt"
        )
