"""Token ids back into text, as they come.

Bytes of tokens are put together (vocabulary.py) and read as UTF-8 by an incremental
decoder. It keeps at most three bytes of a character that is not complete, so what a
token costs, and what is kept back, never grows with the text; nothing that was given
out is ever taken back. Bytes that are no UTF-8 become U+FFFD, one for each maximal
part of a character (Unicode 16, section 3.9), as the tokenizers of byte-level models
write them too.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...types.output import TextDelta
from .stop import StopScanner
from .vocabulary import Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence. Not shared between threads.

    The text of all deltas together depends on the ids alone, not on how they were
    split between calls. A token that ends the sequence without being part of its
    text (an end-of-sequence id that is not skipped as special) is the caller's to
    leave out.

    Args:
      at_start: no text stands before the first token, so that its leading space is
        dropped where the tokenizer drops it.
      stop: strings that end the text (stop.py tells which one wins).
      include_stop_str_in_output: keep the stop string in the text.
      skip_special_tokens: special tokens add nothing.
      kept_token_ids: special tokens that add their name nevertheless.
      min_tokens: a stop string that is complete by this many tokens ends nothing.
    """

    __slots__ = (
        "_at_start",
        "_finished",
        "_min_tokens",
        "_num_tokens",
        "_scanner",
        "_spell",
        "_utf8",
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
        self._utf8 = _Utf8Decoder(errors="replace")
        self._scanner = (
            StopScanner(stop, include=include_stop_str_in_output) if stop else None
        )

    @property
    def num_held(self) -> int:
        """Characters that may yet become a stop string."""
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

    def finish(self) -> TextDelta:
        """End the text: return the held back part, with U+FFFD for half a character."""
        if self._finished:
            return self._end("")
        text = self._utf8.decode(b"", final=True)
        if self._scanner is not None:
            text = self._scan(text, self._scanner)
            if self._scanner.stop is None:
                text += self._scanner.release()
        return self._end(text)

    def _push_scanned(
        self, token_ids: Sequence[int], scanner: StopScanner
    ) -> TextDelta:
        # One by one: the caller learns which token completed the stop string, even
        # where a slow reader's tokens were put together.
        released = []
        for num_tokens, token_id in enumerate(token_ids, 1):
            self._num_tokens += 1
            released.append(self._scan(self._read((token_id,)), scanner))
            if scanner.stop is not None:
                return self._end("".join(released), token_ids[:num_tokens])
        return TextDelta(text="".join(released), token_ids=tuple(token_ids))

    def _read(self, token_ids: Sequence[int]) -> str:
        data = b"".join(map(self._spell, token_ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

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
