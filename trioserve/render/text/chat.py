"""Checks chat messages, and converts them to the form that the template reads.

Templates are written for contents that are strings, or for lists of parts (probing.py
finds out which). Images and tensors are taken out of the messages here. An image leaves
a part of its own, or the model's image token. A tensor of embeddings leaves a *marker*:
a random text that shows the place of its vectors in the rendered chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
import secrets
from typing import Any, Protocol, runtime_checkable

from ...errors import InvalidParameter, NotSupported, list_choices
from .rendering import read_fields
from .template_form import ROLES, TemplateForm, text_part
from .tool_history import ToolHistory
from .tool_prompt import surround, write_result

# About the length of a template's text around a message, such as
# <|im_start|>user\n...<|im_end|>\n
TURN_CHARACTERS = 32

# Bytes are a part of the request's body, without a copy.
Payload = str | bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Base64Image:
    """The file of an image in base64, without the head of a data URL.

    It may take the place of a URL: to join it with a head would copy megabytes.
    """

    data: Payload


class ChatMessage(Protocol):
    """One turn of a conversation: a frozen struct or dataclass with these fields.

    Further fields (`name`, `tool_call_id` ...) reach the template unchanged. A mapping
    with the same keys serves as well.
    """

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> object:
        """Text, None, or a sequence of parts:

        {"type": "text", "text": ...}, {"type": "image_url", "image_url": {"url": ...}},
        {"type": "prompt_embeds", "prompt_embeds": ...}
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image in a message.

    Args:
      param: its field in the request, for errors.
    """

    url: Payload | Base64Image
    param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedsPart:
    """A tensor of embeddings in a message.

    Args:
      param: its field in the request, for errors.
      marker: the text that stands for it in the rendered chat.
    """

    payload: Payload
    param: str
    marker: str


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Messages in the template's form, and the media that were taken out of them."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[ImagePart] = field(default_factory=list)
    embeds: list[EmbedsPart] = field(default_factory=list)
    num_characters: int = 0

    @property
    def has_media(self) -> bool:
        return bool(self.images or self.embeds)


@runtime_checkable
class SizedMessages(Protocol):
    """Messages with a known length."""

    @property
    def num_characters(self) -> int: ...


def count_characters(messages: Sequence[ChatMessage | Mapping[str, object]]) -> int:
    """Estimate the length of a conversation's text before it is read.

    Nothing is checked here. A lazy sequence, which makes its messages when they are
    read, counts only if it is a SizedMessages.
    """
    if isinstance(messages, SizedMessages):
        return messages.num_characters
    if not isinstance(messages, (list, tuple)):
        return 0
    return sum(TURN_CHARACTERS + _measure(message) for message in messages)


def _measure(message: ChatMessage | Mapping[str, object]) -> int:
    if isinstance(message, Mapping):
        content = message.get("content")
    else:
        content = getattr(message, "content", None)
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, (list, tuple)) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return sum(len(text) for text in texts if isinstance(text, str))


def read_messages(
    messages: Sequence[ChatMessage | Mapping[str, object]],
    form: TemplateForm = TemplateForm(),
) -> Conversation:
    """Check messages, and convert them to the form that the template expects.

    Raises:
      InvalidParameter: there are no messages, a field has the wrong type, or the
        template would leave out the calls or results of tools.
      NotSupported: a part is of an unknown kind.
    """
    if not messages:
        raise InvalidParameter("messages", "must not be empty")
    reader = _Reader(form)
    for index, message in enumerate(messages):
        reader.read(message, f"messages[{index}]")
    return reader.conversation


class _Reader:
    """Reads the messages of one conversation."""

    def __init__(self, form: TemplateForm) -> None:
        self.conversation = Conversation()
        self._form = form
        self._ends_in_results = False

    @cached_property
    def _tools(self) -> ToolHistory:
        return ToolHistory(self._form)

    def read(self, message: ChatMessage | Mapping[str, object], param: str) -> None:
        fields = read_fields(message, param)
        role = self._read_role(fields.get("role"), f"{param}.role")
        if role == "tool":
            self._tools.read_result(fields, param)
        has_content = fields.get("content") is not None
        fields["role"] = role
        fields["content"] = self._read_content(
            fields.get("content"), f"{param}.content"
        )
        if role == "assistant":
            _read_reasoning(fields, param)
        if fields.get("tool_calls"):
            self._tools.read_calls(
                fields, f"{param}.tool_calls", has_content=has_content
            )
        if role == "tool" and self._form.writes_results:
            self._write_result(fields["content"])
        else:
            self.conversation.messages.append(fields)
            self._ends_in_results = False

    def _write_result(self, content: object) -> None:
        """Make a message of the user of one or several results in a row."""
        messages, written = self.conversation.messages, write_result(content)
        if self._ends_in_results:
            before = surround(messages.pop()["content"], after="\n")
            # Invariant: both are texts, or both are lists of parts.
            written = before + written  # type: ignore[operator]
        messages.append({"role": "user", "content": written})
        self._ends_in_results = True

    def _read_role(self, role: object, param: str) -> str:
        """Return the role under which the template knows it."""
        if isinstance(role, str):
            if role in self._form.roles:
                return role
            if role in ROLES:
                return ROLES[role]
            hidden = not role or role in self._form.hidden_roles
            if self._form.takes_any_role and not hidden:
                return role
        taken = [*ROLES, *sorted(self._form.roles - ROLES.keys())]
        raise InvalidParameter(param, list_choices(taken, role))

    def _read_content(self, content: object, param: str) -> object:
        # None becomes "", because templates concatenate contents with strings.
        if content is None:
            content = ""
        if isinstance(content, str):
            self.conversation.num_characters += len(content)
            return content if self._form.takes_strings else [text_part(content)]
        if not isinstance(content, Sequence) or isinstance(content, bytes):
            raise InvalidParameter(param, "must be a string or a list of parts")
        parts = [
            self._read_part(part, f"{param}[{index}]")
            for index, part in enumerate(content)
        ]
        has_images = any(part["type"] == "image" for part in parts)
        if self._form.takes_parts and (has_images or not self._form.takes_strings):
            return parts
        # vLLM joins parts in the same way for templates that take strings.
        return "\n".join(
            part["text"] if part["type"] == "text" else self._form.image_token or ""
            for part in parts
        )

    def _read_part(self, part: object, param: str) -> dict[str, str]:
        fields = read_fields(part, param)
        kind = fields.get("type")
        match kind:
            case "text":
                return self._read_text(fields, param)
            case "image_url":
                return self._read_image(fields, f"{param}.image_url")
            case "prompt_embeds":
                return self._read_embeds(fields, f"{param}.prompt_embeds")
        raise NotSupported(
            f"{param}.type", list_choices(("text", "image_url", "prompt_embeds"), kind)
        )

    def _read_text(self, fields: dict[str, object], param: str) -> dict[str, str]:
        text = fields.get("text")
        if not isinstance(text, str):
            raise InvalidParameter(f"{param}.text", "must be a string")
        self.conversation.num_characters += len(text)
        return text_part(text)

    def _read_image(self, fields: dict[str, object], param: str) -> dict[str, str]:
        if self._form.image_token is None:
            raise NotSupported(param, self._form.image_refusal)
        image = fields.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if not isinstance(url, (str, bytes, memoryview, Base64Image)):
            raise InvalidParameter(f"{param}.url", "must be a string")
        self.conversation.images.append(ImagePart(url=url, param=param))
        return {"type": "image"}

    def _read_embeds(self, fields: dict[str, object], param: str) -> dict[str, str]:
        payload = fields.get("prompt_embeds")
        if not isinstance(payload, (str, bytes, memoryview)):
            raise InvalidParameter(param, "must be a string")
        number = len(self.conversation.embeds)
        # Random, so that no client's text can contain it.
        marker = f"<embeds-{number}-{secrets.token_hex(16)}>"
        self.conversation.embeds.append(
            EmbedsPart(payload=payload, param=param, marker=marker)
        )
        return text_part(marker)


def _read_reasoning(message: dict[str, Any], param: str) -> None:
    """Set both names under which templates read the reasoning of an earlier answer.

    Clients send one of the two: vLLM's name is `reasoning`; DeepSeek's, which most
    templates read, is `reasoning_content`.
    """
    texts = {}
    for name in ("reasoning", "reasoning_content"):
        text = message.pop(name, None)
        if text is not None and not isinstance(text, str):
            raise InvalidParameter(f"{param}.{name}", "must be a string")
        texts[name] = text
    sent = [text for text in texts.values() if text is not None]
    if sent:
        for name, text in texts.items():
            message[name] = sent[0] if text is None else text
