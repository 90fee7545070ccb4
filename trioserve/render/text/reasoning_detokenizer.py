"""Turns token ids into reasoning and answer, and counts the tokens of the reasoning."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from ...types.output import TextDelta
from .detokenizer import Detokenizer
from .reasoning import Place, ReasoningSplitter, ReasoningTags
from .vocabulary import Vocabulary


class ReasoningDetokenizer(Detokenizer):
    """A Detokenizer that separates the reasoning from the text of the answer.

    Stop strings are searched before the text is split. A token is reasoning if one of
    its characters is; the tags count as reasoning, too. Tokens may arrive in groups,
    which are split into single tokens until the reasoning ends.

    Args:
      place: the place at which the answer begins, from ReasoningTags.find_place.
    """

    __slots__ = ("_counter", "_splitter")

    def __init__(
        self,
        vocabulary: Vocabulary,
        tags: ReasoningTags,
        place: Place,
        *,
        at_start: bool,
        stop: tuple[str, ...],
        include_stop_str_in_output: bool,
        skip_special_tokens: bool,
        kept_token_ids: frozenset[int] = frozenset(),
        min_tokens: int,
    ) -> None:
        super().__init__(
            vocabulary,
            at_start=at_start,
            stop=stop,
            include_stop_str_in_output=include_stop_str_in_output,
            skip_special_tokens=skip_special_tokens,
            kept_token_ids=kept_token_ids | tags.kept_token_ids,
            min_tokens=min_tokens,
        )
        self._splitter = ReasoningSplitter(tags.style, place)
        self._counter = _TokenCounter(self._splitter)

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        if not token_ids or self._counter.is_done:
            return self._split(super().push(token_ids))
        if len(token_ids) == 1:
            return self._push_one(token_ids[0])
        return TextDelta.join([self._push_one(token_id) for token_id in token_ids])

    def finish(self, *, is_cut: bool = False) -> TextDelta:
        return self._split(super().finish(is_cut=is_cut))

    def _push_one(self, token_id: int) -> TextDelta:
        num_held = self.num_held
        delta = super().push((token_id,))
        if delta.token_ids:
            # Negative if a stop string ended the text before this token; then no token
            # follows, and only the offset at which this one begins counts.
            self._counter.push(len(delta.text) + self.num_held - num_held)
        return self._split(delta)

    def _split(self, delta: TextDelta) -> TextDelta:
        reasoning, text = self._splitter.push(delta.text)
        if self._finished:
            last_reasoning, last_text = self._splitter.finish()
            reasoning += last_reasoning
            text += last_text
        return msgspec.structs.replace(
            delta,
            text=text,
            reasoning=reasoning,
            num_reasoning_tokens=self._counter.count(is_final=self._finished),
        )


class _TokenCounter:
    """Counts the tokens of a splitter's reasoning section.

    A token is counted when the splitter has decided the section of its text.
    """

    __slots__ = ("_num_characters", "_num_empty", "_splitter", "_waiting")

    def __init__(self, splitter: ReasoningSplitter) -> None:
        self._splitter = splitter
        self._num_characters = 0
        # Tokens without a character of their own: parts of the next token's first one.
        self._num_empty = 0
        # (offset of the first character, offset behind the last one, number of tokens)
        self._waiting: deque[tuple[int, int, int]] = deque()

    @property
    def is_done(self) -> bool:
        """True if no further token can count."""
        return self._splitter.end is not None

    def push(self, num_characters: int) -> None:
        """Take a token, whose text has so many characters."""
        self._num_empty += 1
        if num_characters:
            self._wait(num_characters)

    def count(self, *, is_final: bool) -> int:
        """Return the number of tokens found to be reasoning since the last call."""
        if is_final and self._num_empty:
            self._wait(0)
        num_tokens = 0
        num_decided = self._splitter.num_decided
        while self._waiting and (is_final or self._waiting[0][1] <= num_decided):
            begin, end, number = self._waiting.popleft()
            if self._is_reasoning(begin, end):
                num_tokens += number
        return num_tokens

    def _wait(self, num_characters: int) -> None:
        begin = self._num_characters
        self._num_characters = end = begin + num_characters
        self._waiting.append((begin, end, self._num_empty))
        self._num_empty = 0

    def _is_reasoning(self, begin: int, end: int) -> bool:
        section = self._splitter
        if section.begin is None or max(end, begin + 1) <= section.begin:
            return False
        return section.end is None or begin < section.end
