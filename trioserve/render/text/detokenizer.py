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

import msgspec

from .stop import StopScanner
from .vocabulary import Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What some token ids added to a text.

    Args:
      text: new characters, all complete.
      reasoning: those of them that are no answer, where that is told apart; they are
        not in `text`.
      num_reasoning_tokens: tokens that were found to be reasoning; their text may have
        been given before, or be held back.
      num_tokens: ids that belong to the text; those after a stop string do not.
      finished: nothing will be added any more.
      stop: the stop string that ended the text.
    """

    text: str
    reasoning: str = ""
    num_reasoning_tokens: int = 0
    num_tokens: int = 0
    finished: bool = False
    stop: str | None = None

    @classmethod
    def join(cls, deltas: Sequence[TextDelta]) -> TextDelta:
        """Put deltas in a row together; at least one."""
        return msgspec.structs.replace(
            deltas[-1],
            text="".join(delta.text for delta in deltas),
            reasoning="".join(delta.reasoning for delta in deltas),
            num_reasoning_tokens=sum(delta.num_reasoning_tokens for delta in deltas),
            num_tokens=sum(delta.num_tokens for delta in deltas),
        )


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
        at_start: bool = False,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        kept_token_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
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
        """Take the next output ids; after the end of the text they are ignored."""
        if self._finished:
            return self._end("", num_tokens=0)
        if self._scanner is None:
            return TextDelta(text=self._read(token_ids), num_tokens=len(token_ids))
        return self._push_scanned(token_ids, self._scanner)

    def finish(self) -> TextDelta:
        """No more ids come: give what was held back, U+FFFD for half a character."""
        if self._finished:
            return self._end("", num_tokens=0)
        text = self._utf8.decode(b"", final=True)
        if self._scanner is not None:
            text = self._scan(text, self._scanner)
            if self._scanner.stop is None:
                text += self._scanner.release()
        return self._end(text, num_tokens=0)

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
                return self._end("".join(released), num_tokens=num_tokens)
        return TextDelta(text="".join(released), num_tokens=len(token_ids))

    def _read(self, token_ids: Sequence[int]) -> str:
        data = b"".join(map(self._spell, token_ids))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def _scan(self, text: str, scanner: StopScanner) -> str:
        return scanner.scan(text, armed=self._num_tokens > self._min_tokens)

    def _end(self, text: str, *, num_tokens: int) -> TextDelta:
        self._finished = True
        stop = None if self._scanner is None else self._scanner.stop
        return TextDelta(text=text, num_tokens=num_tokens, finished=True, stop=stop)
