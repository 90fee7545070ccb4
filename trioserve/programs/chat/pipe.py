"""One question, and its answer alone on standard output."""

from __future__ import annotations

from collections.abc import Callable
import os
import sys
from typing import Final, TextIO

from ...errors import InvalidConfig, StartupError, make_line, make_safe
from .answers import Answerer, open_fitting_answer
from .config import ChatConfig
from .conversation import Conversation
from .images import ImageRefused, read_image

# By the reason for which an answer ended.
_EARLY_ENDS: Final = {
    "length": "the answer has reached the limit of its tokens, so it may lack its end",
    "repetition": "the answer repeated itself, so it was ended",
}


def explain_end(finish_reason: str | None) -> str:
    """Say why an answer ended early; empty if it did not."""
    return _EARLY_ENDS.get(finish_reason or "", "")


def read_question(prompt: str) -> str:
    """Return the question of --prompt and of standard input.

    Raises:
      StartupError: there is none.
    """
    parts = [prompt]
    if not sys.stdin.isatty():
        # Any bytes; wrong UTF-8 is not worth a refusal.
        parts.append(sys.stdin.buffer.read().decode(errors="replace"))
    question = "\n\n".join(part.strip() for part in parts if part.strip())
    if not question:
        raise StartupError("chat: there is no question: standard input is empty")
    return question


def begin_conversation(config: ChatConfig) -> Conversation:
    """Return a conversation with the system message and the pictures of the options.

    Raises:
      InvalidConfig: a picture cannot be read.
    """
    conversation = Conversation(config.talk.system)
    try:
        conversation.images.extend(map(read_image, config.talk.image))
    except ImageRefused as error:
        raise InvalidConfig("image", str(error)) from None
    return conversation


def check_images(model: Answerer, conversation: Conversation) -> None:
    """Refuse pictures for a model that is known to take none.

    Raises:
      InvalidConfig
    """
    if conversation.images and model.takes_images is False:
        raise InvalidConfig("image", f"{make_line(model.name)} takes no pictures")


async def answer_once(
    model: Answerer, conversation: Conversation, question: str, config: ChatConfig
) -> int:
    """Ask, and write the answer while it comes; returns the exit code.

    Raises:
      AnswerFailed
    """
    check_images(model, conversation)
    conversation.ask(question)
    writer = AnswerWriter(sys.stdout)
    finish_reason = None
    try:
        async with open_fitting_answer(
            model, conversation.write(), config.sampling.list_given()
        ) as pieces:
            async for piece in pieces:
                writer.write(piece.text)
                finish_reason = piece.finish_reason or finish_reason
    except BrokenPipeError:
        _leave_pipe()
        return 0
    finally:
        writer.finish()
    if end := explain_end(finish_reason):
        sys.stderr.write(f"trioserve: {end}\n")
    return 0


class AnswerWriter:
    """Writes text at once; for a terminal, without commands.

    A file or another program gets the text as it is, as from `ls`.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_open = True
        self._ends_line = True
        self._clean: Callable[[str], str] = make_safe if file.isatty() else str

    def write(self, text: str) -> None:
        """Write a piece.

        Raises:
          BrokenPipeError: nobody reads any more.
        """
        text = self._clean(text)
        if not text:
            return
        # In UTF-8 whatever the locale; half a character becomes a question mark.
        self._send(text.encode("utf-8", errors="replace"))
        self._ends_line = text.endswith("\n")

    def finish(self) -> None:
        """End the last line, so that a shell's prompt does not stand behind it."""
        if not self._ends_line and self._is_open:
            try:
                self._send(b"\n")
            except BrokenPipeError:
                _leave_pipe()

    def _send(self, content: bytes) -> None:
        try:
            self._file.buffer.write(content)
            self._file.buffer.flush()
        except BrokenPipeError:
            self._is_open = False
            raise


def _leave_pipe() -> None:
    # The interpreter flushes once more as it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
