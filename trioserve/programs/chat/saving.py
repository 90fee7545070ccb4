"""A conversation to a file: Markdown to read, or JSON in OpenAI's form; `restoring` reads both."""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
import re
from typing import Final

from ...errors import make_line
from .conversation import Conversation

# The lines of Markdown that divide a conversation. Where a text has such a line itself, it gets
# a backslash, which Markdown does not show.
DIVIDER: Final = re.compile(
    r"^(?P<slashes>\\*)(## (?P<role>System|User|Assistant)|\(picture: (?P<name>.*)\))$",
    re.MULTILINE,
)


class NotSaved(Exception):
    """Raised when a file cannot be written; the message is a sentence."""


def is_json(file: Path) -> bool:
    """Return whether the ending of a name chooses JSON."""
    return file.suffix.lower() == ".json"


def save(conversation: Conversation, path: str, *, may_replace: bool) -> Path:
    """Write the conversation; the ending .json chooses JSON. Returns the whole path.

    Raises:
      NotSaved
    """
    try:
        file = Path(path).expanduser().absolute()
        text = (_write_json if is_json(file) else _write_markdown)(conversation)
        mode = "w" if may_replace else "x"
        with file.open(mode, encoding="utf-8", errors="replace") as opened:
            opened.write(text)
    except FileExistsError:
        raise NotSaved(f"{path} exists already; choose another name") from None
    except OSError as error:
        raise NotSaved(f"cannot write {path}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:
        raise NotSaved(f"cannot write {path!r}: {error}") from None
    return file


def _write_json(conversation: Conversation) -> str:
    messages = {"messages": conversation.write()}
    return json.dumps(messages, ensure_ascii=False, indent=2) + "\n"


def _write_markdown(conversation: Conversation) -> str:
    return "\n".join(_list_paragraphs(conversation))


def _list_paragraphs(conversation: Conversation) -> Iterator[str]:
    if conversation.system:
        yield f"## System\n\n{_escape(conversation.system)}\n"
    for turn in conversation.turns:
        yield f"## User\n\n{_escape(turn.question.text)}\n"
        for image in turn.question.images:
            yield f"(picture: {make_line(image.name)})\n"
        yield f"## Assistant\n\n{_escape(turn.answer.strip())}\n"


def _escape(text: str) -> str:
    return DIVIDER.sub(r"\\\g<0>", text)
