"""A conversation from a file that `saving` has written, or from another one in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
import json
from pathlib import Path
import re
from typing import Any, Final

from .conversation import ChatTurn, Question
from .images import Image
from .saving import DIVIDER, is_json

# A few pictures of the largest size, and thousands of pages.
_MAX_BYTES: Final = 256 * 2**20


class NotRestored(Exception):
    """Raised when a file is not a conversation; the message is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The content of a file.

    Args:
      unanswered: the last question, if it has no answer.
      num_lost_images: pictures of which the file has only the names.
    """

    system: str = ""
    turns: tuple[ChatTurn, ...] = ()
    unanswered: Question | None = None
    num_lost_images: int = 0

    @property
    def questions(self) -> list[Question]:
        unanswered = [] if self.unanswered is None else [self.unanswered]
        return [*(turn.question for turn in self.turns), *unanswered]

    @property
    def has_images(self) -> bool:
        return any(question.images for question in self.questions)


def restore(path: str) -> Restored:
    """Read a conversation; the ending .json means JSON, and others Markdown.

    Raises:
      NotRestored
    """
    try:
        file = Path(path).expanduser()
        text = _read_text(file)
        if is_json(file):
            return _read_messages(_read_json(text))
        return _read_markdown(text)
    except OSError as error:
        raise NotRestored(f"cannot load {path}: {error.strerror}") from None
    # Of Path, such as for a name with a zero in it, and our own.
    except (ValueError, RuntimeError) as error:
        raise NotRestored(f"cannot load {path}: {error}") from None


def _read_text(file: Path) -> str:
    size = file.stat().st_size
    # A pipe or a device might never end.
    if not (file.is_file() or file.is_dir()):
        raise ValueError("it is not a file")
    if size > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
    try:
        # Line ends stay as they are.
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None


def _read_json(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list):
        raise ValueError("it has no list of messages")
    return messages


def _read_markdown(text: str) -> Restored:
    """Read a file of _write_markdown."""
    dividers = [each for each in DIVIDER.finditer(text) if not each["slashes"]]
    ends = [*(each.start() for each in dividers[1:]), len(text)]
    if not dividers or text[: dividers[0].start()].strip():
        raise ValueError("it does not begin with ## System or ## User")
    messages: list[dict[str, Any]] = []
    num_images = 0
    for divider, end in zip(dividers, ends):
        part = DIVIDER.sub(_unescape, text[divider.end() : end]).strip("\n")
        if role := divider["role"]:
            messages.append({"role": role.lower(), "content": part})
        elif messages:
            num_images += 1
            messages[-1]["content"] = f"{messages[-1]['content']}\n{part}".rstrip("\n")
    return replace(_read_messages(messages), num_lost_images=num_images)


def _unescape(match: re.Match[str]) -> str:
    return match[0].removeprefix("\\")


def _read_messages(messages: Sequence[Any]) -> Restored:
    """Read messages: perhaps a system message, then questions and answers in turns."""
    numbered = list(enumerate(messages, start=1))
    system = ""
    if numbered and _find_role(numbered[0][1]) == "system":
        system = _read_question(*numbered.pop(0)).text
    turns: list[ChatTurn] = []
    asked: Question | None = None
    for number, message in numbered:
        wanted = "user" if asked is None else "assistant"
        if _find_role(message) != wanted:
            raise ValueError(f"message {number} must have the role {wanted!r}")
        read = _read_question(number, message)
        if asked is None:
            asked = read
        elif not read.text.strip() or read.images:
            raise ValueError(f"message {number} must be an answer in text")
        else:
            turns.append(ChatTurn(question=asked, answer=read.text))
            asked = None
    if not turns and asked is None:
        raise ValueError("it has no question")
    return Restored(system=system, turns=tuple(turns), unanswered=asked)


def _find_role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _read_question(number: int, message: dict[str, Any]) -> Question:
    """Read the content of a message."""
    content = message.get("content")
    parts = (
        content if isinstance(content, list) else [{"type": "text", "text": content}]
    )
    texts: list[str] = []
    images: list[Image] = []
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                images.append(Image(name="picture", url=url))
            case _:
                raise ValueError(f"message {number} has more than texts and pictures")
    return Question(text="\n".join(texts), images=tuple(images))
