"""The messages of a conversation, and the question that waits for an answer.

ask --> answer --> go_on --> answer
    \\-> drop, if there is no answer; the question may be asked again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .images import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A message of the user, with pictures."""

    text: str
    images: tuple[Image, ...] = ()

    def write(self) -> dict[str, Any]:
        """Return the message in OpenAI's form."""
        if not self.images:
            return {"role": "user", "content": self.text}
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": image.url}}
            for image in self.images
        ]
        return {
            "role": "user",
            "content": [*parts, {"type": "text", "text": self.text}],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A question and its answer, which may have been stopped; it is not empty."""

    question: Question
    answer: str


class Conversation:
    """The turns so far.

    Attributes:
      system: the system message; empty for none.
      turns: with their answers.
      images: pictures for the next question.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.turns: list[ChatTurn] = []
        self.images: list[Image] = []
        self._asked: Question | None = None
        # The answer so far, if it goes on.
        self._begun = ""
        self._dropped: Question | None = None

    def ask(self, text: str) -> None:
        """Say something, with the pictures that wait for it."""
        self._asked = Question(text=text, images=tuple(self.images))
        self._dropped = None
        self.images.clear()

    def ask_again(self) -> Question | None:
        """Ask the last question again, in place of its answer; None if there is none."""
        if self._dropped is not None:
            self._asked, self._dropped = self._dropped, None
        elif self.turns:
            self._asked = self.turns.pop().question
        else:
            return None
        return self._asked

    def go_on(self) -> bool:
        """Continue the last answer; returns whether there is one."""
        if not self.turns or self._dropped is not None:
            return False
        turn = self.turns.pop()
        self._asked, self._begun = turn.question, turn.answer
        return True

    def answer(self, text: str) -> None:
        """Keep the answer, or the rest of it. Without any text, the question is dropped."""
        assert self._asked is not None, "an answer follows a question"
        text, self._begun = self._begun + text, ""
        if text.strip():
            self.turns.append(ChatTurn(question=self._asked, answer=text))
        else:
            self._dropped = self._asked
        self._asked = None

    def undo(self) -> Question | None:
        """Forget the last question and its answer; None if there is none."""
        if self._dropped is not None:
            question, self._dropped = self._dropped, None
            return question
        return self.turns.pop().question if self.turns else None

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.turns.clear()
        self.images.clear()
        self._asked = self._dropped = None

    def replace(
        self, system: str, turns: Sequence[ChatTurn], unanswered: Question | None
    ) -> None:
        """Go on with another conversation.

        Args:
          unanswered: its last question, if that has no answer; ask_again asks it.
        """
        self.clear()
        self.system = system
        self.turns.extend(turns)
        self._dropped = unanswered

    def write(self) -> list[dict[str, Any]]:
        """Return the messages in OpenAI's form, the open question included."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns:
            messages.append(turn.question.write())
            messages.append({"role": "assistant", "content": turn.answer})
        if self._asked is not None:
            messages.append(self._asked.write())
        if self._begun:
            messages.append({"role": "assistant", "content": self._begun})
        return messages
