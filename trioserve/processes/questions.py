"""Questions to another process, and their answers: an answer has the number of its question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import itertools
from typing import Generic, TypeVar

import trio

AnswerT = TypeVar("AnswerT")


class OpenQuestion(Generic[AnswerT]):
    """A question that waits for its answers.

    Attributes:
      answers: those that have come.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: list[AnswerT] = []
        self._num_taken = 0
        self._num_expected: int | None = None
        self._is_over = trio.Event()

    def expect(self, num_answers: int) -> None:
        """Say how many answers come."""
        self._num_expected = num_answers
        self._check()

    def take(self, answer: AnswerT | None) -> None:
        """Take an answer; None if there is none, as its process has ended."""
        self._num_taken += 1
        if answer is not None:
            self.answers.append(answer)
        self._check()

    async def wait(self) -> list[AnswerT]:
        """Wait for the last answer, and return all."""
        await self._is_over.wait()
        return self.answers

    def _check(self) -> None:
        if self._num_expected is not None and self._num_taken >= self._num_expected:
            self._is_over.set()


class OpenQuestions(Generic[AnswerT]):
    """The questions over one connection that wait for their answers."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, OpenQuestion[AnswerT]] = {}

    @contextmanager
    def open(self, num_answers: int | None = 1) -> Iterator[OpenQuestion[AnswerT]]:
        """Ask a question, until the block is left.

        Args:
          num_answers: None if that is not known yet; see OpenQuestion.expect.
        """
        question = OpenQuestion[AnswerT](next(self._numbers))
        if num_answers is not None:
            question.expect(num_answers)
        self._open[question.number] = question
        try:
            yield question
        finally:
            del self._open[question.number]

    def find(self, number: int) -> OpenQuestion[AnswerT] | None:
        """Return the question of an answer; None if nobody waits for it any more."""
        return self._open.get(number)

    def end_all(self) -> None:
        """End the wait for answers: none follows."""
        for question in self._open.values():
            question.expect(0)
