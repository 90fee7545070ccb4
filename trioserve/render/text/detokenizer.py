"""Turns the token ids of one sequence into text as they come.

The bytes of the tokens (vocabulary.py) are joined and decoded by an incremental UTF-8
decoder. It keeps at most three bytes of an incomplete character. So neither the cost of
a token nor the held text grows with the length of the text, and released text is never
taken back. Invalid bytes become U+FFFD, one for each maximal part of a character
(Unicode 16, section 3.9); the tokenizers of byte-level models do the same.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...types.output import TextDelta
from .stop import StopScanner
from .vocabulary import Vocabulary


class Detokenizer:
    """Makes the text of one sequence. It is not shared between threads.

    The text of all deltas together depends on the ids alone, not on their division into
    calls. The caller leaves out a token that ends the sequence without being part of
    its text, such as an end-of-sequence id that is not skipped as special.

    Args:
      at_start: no text stands before the first token. If the tokenizer drops a leading
        space there, it is dropped here, too.
      stop: strings that end the text (stop.py has the rules).
      include_stop_str_in_output: keep the stop string in the text.
      skip_special_tokens: special tokens add nothing to the text.
      kept_token_ids: special tokens that add their name nevertheless.
      min_tokens: a stop string ends the text only if a later token than this many
        completes it.
    """

    __slots__ = (
        "_at_start",
        "_finished",
        "_half",
        "_min_tokens",
        "_num_tokens",
        "_scanner",
        "_spell",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        at_start: bool,
        stop: tuple[str, ...],
        include_stop_str_in_output: bool,
        skip_special_tokens: bool,
        kept_token_ids: frozenset[int] = frozenset(),
        min_tokens: int,
    ) -> None:
        self._spell = vocabulary.choose_speller(
            skip_special_tokens=skip_special_tokens, kept_token_ids=kept_token_ids
        )
        self._at_start = at_start and vocabulary.drops_first_space
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._finished = False
        # The bytes of an incomplete character.
        self._half = b""
        self._scanner = (
            StopScanner(stop, include=include_stop_str_in_output) if stop else None
        )

    @property
    def num_held(self) -> int:
        """The number of characters that may still become a stop string."""
        return 0 if self._scanner is None else self._scanner.num_held

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Read the next output ids; after the end of the text they are ignored.

        Returns:
          The new text and the ids that belong to it: those after a stop string do not.
          A stop string sets finish_reason and stop_reason.
        """
        if self._finished:
            return self._end("")
        if self._scanner is None:
            return TextDelta(text=self._read(token_ids), token_ids=tuple(token_ids))
        return self._push_scanned(token_ids, self._scanner)

    def finish(self, *, is_cut: bool = False) -> TextDelta:
        """End the text: return the held back part, with U+FFFD for half a character.

        Args:
          is_cut: the model has not ended it itself; all the same here.
        """
        if self._finished:
            return self._end("")
        text = self._read((), is_last=True)
        if self._scanner is not None:
            text = self._scan(text, self._scanner)
            text += self._scanner.release()
        return self._end(text)

    def _push_scanned(
        self, token_ids: Sequence[int], scanner: StopScanner
    ) -> TextDelta:
        # One by one, so that num_tokens says which token completed the stop string,
        # even if the tokens for a slow reader arrive as a group.
        released = []
        for num_tokens, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            released.append(self._scan(self._read((token_id,)), scanner))
            if scanner.stop is not None:
                return self._end("".join(released), token_ids[:num_tokens])
        return TextDelta(text="".join(released), token_ids=tuple(token_ids))

    def _read(self, token_ids: Sequence[int], *, is_last: bool = False) -> str:
        data = b"".join(map(self._spell, token_ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        data = self._half + data
        text, num_read = codecs.utf_8_decode(data, "replace", is_last)
        self._half = data[num_read:]
        return text

    def _scan(self, text: str, scanner: StopScanner) -> str:
        return scanner.scan(text, armed=self._num_tokens > self._min_tokens)

    def _end(self, text: str, token_ids: Sequence[int] = ()) -> TextDelta:
        self._finished = True
        stop = None if self._scanner is None else self._scanner.stop
        return TextDelta(
            text=text,
            token_ids=tuple(token_ids),
            finish_reason=None if stop is None else "stop",
            stop_reason=stop,
        )
