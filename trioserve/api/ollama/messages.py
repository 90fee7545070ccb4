"""A conversation of Ollama's API in the renderer's form, the form of chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
import re
from typing import Final

from ...render import TURN_CHARACTERS, Base64Image
from ..decode.values import read_string
from ..shared.message_mappings import LazyMappings, decode_arguments
from .requests import OllamaCall, OllamaMessage

# A part of a message, as the renderer's errors name it. The images come first.
_PART: Final = re.compile(r"(messages\[(\d+)\])\.content(?:\[(\d+)\])?(.*)", re.DOTALL)


class OllamaMappings(LazyMappings):
    """The messages of a conversation.

    Raises:
      InvalidParameter: on reading: an image is not a string, or the arguments of a call are
        not an object. `param` names the place in the renderer's form; see `locate`.
    """

    def __init__(self, messages: Sequence[OllamaMessage]) -> None:
        self._messages = messages

    @cached_property
    def num_characters(self) -> int:
        number = TURN_CHARACTERS * len(self._messages)
        for message in self._messages:
            number += len(message.content or "") + len(message.thinking or "")
            for call in message.tool_calls or ():
                number += len(memoryview(call.function.arguments))
        return number

    def list_sizes(self) -> Iterator[int]:
        for message in self._messages:
            yield 1 + len(message.images or ()) + len(message.tool_calls or ())

    def __len__(self) -> int:
        return len(self._messages)

    def make(self, index: int) -> dict[str, object]:
        message, path = self._messages[index], f"messages[{index}]"
        mapping: dict[str, object] = {
            # Ollama takes names in capitals, too.
            "role": message.role.lower(),
            "content": _make_content(message, path),
        }
        if message.thinking:
            mapping["reasoning"] = message.thinking
        if message.tool_calls:
            mapping["tool_calls"] = [
                _make_call(call, call_id, f"{path}.tool_calls[{number}]")
                for number, (call, call_id) in enumerate(
                    zip(message.tool_calls, self._call_ids[index])
                )
            ]
        if mapping["role"] == "tool":
            if message.tool_name is not None:
                mapping["name"] = message.tool_name
            if self._call_ids[index]:
                mapping["tool_call_id"] = self._call_ids[index][0]
        return mapping

    @cached_property
    def _call_ids(self) -> list[list[str]]:
        """The ids of the calls of each message, or of the call whose result it is.

        Ollama's clients leave the ids out, and some templates need them. Then a result
        belongs to the first call of its tool that has none yet.
        """
        ids: list[list[str]] = []
        waiting: list[tuple[str, str]] = []
        number = 0
        for message in self._messages:
            found: list[str] = []
            for call in message.tool_calls or ():
                # Mistral's templates want nine letters or digits.
                found.append(call.id or f"call{number:05}")
                waiting.append((call.function.name, found[-1]))
                number += 1
            if message.role.lower() == "tool":
                found = _take_call(message, waiting)
            ids.append(found)
        return ids

    def locate(self, param: str) -> str:
        """Return the client's name of a field that the renderer names in an error."""
        found = _PART.fullmatch(param)
        if found is None:
            return param
        images = self._messages[int(found[2])].images or ()
        if found[3] is not None and int(found[3]) < len(images):
            return f"{found[1]}.images[{found[3]}]"
        return f"{found[1]}.content"


def _take_call(message: OllamaMessage, waiting: list[tuple[str, str]]) -> list[str]:
    """Return the id of the call whose result a message is, and take it from the list."""
    for place, (name, call_id) in enumerate(waiting):
        if message.tool_call_id is not None:
            is_meant = call_id == message.tool_call_id
        else:
            is_meant = message.tool_name in (None, "", name)
        if is_meant:
            del waiting[place]
            return [call_id]
    return [] if message.tool_call_id is None else [message.tool_call_id]


def _make_content(message: OllamaMessage, path: str) -> object:
    text = message.content or ""
    if not message.images:
        return text
    parts: list[dict[str, object]] = []
    for number, image in enumerate(message.images):
        payload = read_string(f"{path}.content[{number}]", image)
        url = Base64Image(data=payload)
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [*parts, {"type": "text", "text": text}] if text else parts


def _make_call(call: OllamaCall, call_id: str, path: str) -> dict[str, object]:
    function = call.function
    arguments: object = {}
    if memoryview(function.arguments):
        arguments = decode_arguments(f"{path}.function.arguments", function.arguments)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": function.name, "arguments": arguments},
    }
