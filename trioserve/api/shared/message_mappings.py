"""Messages in the renderer's form, and the options of their template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Protocol, overload

import msgspec

from ...errors import NotSupported
from ...render import TURN_CHARACTERS, ChatOptions, ReasoningEffort
from ..decode.values import begins_with, decode_field, decode_free_form, read_string
from .messages import ContentPart, ImageUrl, Message

# Templates need a few flags.
MAX_TEMPLATE_KWARGS_BYTES: Final = 16_384


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
    def count_parts(self) -> Iterator[int]:
        """Count the texts, images and the like that num_characters looks at, in pieces."""

    def has_more_parts(self, limit: int) -> bool:
        """Return whether there are more parts than a number, without a look at the rest."""
        num_parts = 0
        for number in self.count_parts():
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

    @overload
    def __getitem__(self, index: int) -> dict[str, object]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, object]]: ...

    def __getitem__(
        self, index: int | slice
    ) -> dict[str, object] | Sequence[dict[str, object]]:
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
        return sum(map(_count_characters, self._messages))

    def count_parts(self) -> Iterator[int]:
        for message in self._messages:
            yield count_parts(message.content)

    def __len__(self) -> int:
        return len(self._messages)

    def make(self, index: int) -> dict[str, object]:
        return _to_mapping(self._messages[index], index)


class TemplateFields(Protocol):
    """The fields of a request that are inputs of the chat template."""

    @property
    def adds_generation_prompt(self) -> bool: ...

    @property
    def continue_final_message(self) -> bool | None: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def chat_template_kwargs(self) -> dict[str, object] | None: ...

    @property
    def reasoning_effort(self) -> ReasoningEffort | None: ...

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]: ...


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


def _to_mapping(message: Message, index: int) -> dict[str, object]:
    content: object = message.content
    if isinstance(message.content, tuple):
        path = f"messages[{index}].content"
        content = [
            _to_part(part, f"{path}[{i}]") for i, part in enumerate(message.content)
        ]
    mapping: dict[str, object] = {"role": message.role, "content": content}
    if message.name is not None:
        mapping["name"] = message.name
    if message.tool_call_id is not None:
        mapping["tool_call_id"] = message.tool_call_id
    for name in ("reasoning", "reasoning_content"):
        if (text := getattr(message, name)) is not None:
            mapping[name] = text
    if message.tool_calls:
        mapping["tool_calls"] = list(map(msgspec.to_builtins, message.tool_calls))
    return mapping


def _count_characters(message: Message) -> int:
    content = message.content or ""
    if isinstance(content, str):
        num_characters = len(content)
    else:
        num_characters = sum(len(part.text or "") for part in content)
    calls = message.tool_calls or ()
    return (
        TURN_CHARACTERS
        + num_characters
        + len(message.reasoning or "")
        + len(message.reasoning_content or "")
        + sum(len(call.function.arguments or "") for call in calls)
    )


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


def count_parts(content: str | tuple[object, ...] | None) -> int:
    """Return the number of parts of one message; a text is one."""
    return len(content) if isinstance(content, tuple) else 1
