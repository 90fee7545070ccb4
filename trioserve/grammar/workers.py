"""Builds and advances guides in threads, while the device computes.

Two threads, so that the masks of running sequences do not wait for a new grammar. Both
spend nearly all their time inside llguidance, which releases the GIL.

A step needs the masks of its sequences when it samples. By then they are ready, as a rule:
they are computed from the moment at which the tokens before are known, beside the layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
import time
from typing import Final, Protocol

from llguidance import LLTokenizer
import numpy as np

from ..types.structured import Grammar
from .guide import Guide, GuideError, Mask, count_words, raising_guide_errors
from .limits import allow_seconds
from .matchers import Matchers

# More grammars than run at once.
_MAX_ACCOUNTS: Final = 1024


class LateIds(Protocol):
    """The tokens of a step, which may not have reached the host yet."""

    def read(self) -> list[int]:
        """Wait for the ids, one for each row of the step."""


@dataclass(slots=True, kw_only=True, eq=False)
class GuidedSequence:
    """One sequence with a grammar.

    Attributes:
      mask: the tokens that may come next; valid while `is_ready`. See Guide.write_mask.
      is_built: the grammar is built; from then on masks come within milliseconds.
      is_ready: `mask` is valid, or `error` is set.
      is_dropped: nobody waits for it any more.
      error: the reason why the sequence cannot go on.
      mask_seconds: how long its last mask took.
    """

    grammar: Grammar
    eos_token_ids: frozenset[int]
    mask: Mask
    guide: Guide | None = None
    is_built: bool = False
    is_ready: bool = False
    is_dropped: bool = False
    error: str | None = None
    mask_seconds: float = 0.0


@dataclass(slots=True)
class _Account:
    """The time that the masks of one grammar have taken, for all of its sequences."""

    seconds: float = 0.0
    num_tokens: int = 0


class GuideWorkers:
    """The two threads, and the built grammars.

    Args:
      load_tokenizer: makes llguidance's view of the model's tokenizer.
      vocab_size: of the model.
    """

    def __init__(
        self, load_tokenizer: Callable[[], LLTokenizer], *, vocab_size: int
    ) -> None:
        self._num_words = count_words(vocab_size)
        self._matchers = Matchers(load_tokenizer)
        # Guards all that follows, and the states of sequences.
        self._changed = Condition()
        # Grammar -> sequences that wait until it is built, and their tokens so far.
        self._waiting: dict[str, list[tuple[GuidedSequence, Sequence[int]]]] = {}
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        # Threads start with the first grammar.
        self._building = ThreadPoolExecutor(1, "grammar builder")
        self._advancing = ThreadPoolExecutor(1, "grammar masks")

    def open(
        self, grammar: Grammar, token_ids: Sequence[int], eos: frozenset[int]
    ) -> GuidedSequence:
        """Begin to build the guide of a sequence; returns at once.

        Args:
          token_ids: output tokens that the sequence has already.
          eos: tokens that end it.
        """
        sequence = GuidedSequence(
            grammar=grammar,
            eos_token_ids=eos,
            mask=np.zeros(self._num_words, dtype=np.int32),
        )
        # A known grammar does not wait behind new ones of others.
        if self._take_built(sequence):
            self._advancing.submit(self._follow, sequence, token_ids)
            return sequence
        with self._changed:
            waiting = self._waiting.setdefault(grammar.text, [])
            waiting.append((sequence, token_ids))
            # A sequence that starts again joins the build that runs.
            if len(waiting) == 1:
                self._building.submit(self._build, grammar.text)
        return sequence

    def advance(
        self, members: Sequence[tuple[int, GuidedSequence]], tokens: LateIds
    ) -> None:
        """Begin to read the new tokens of sequences; returns at once.

        Args:
          members: (index among the tokens, sequence)
        """
        for _, sequence in members:
            sequence.is_ready = False
        self._advancing.submit(self._read, members, tokens)

    def wait_built(self, sequences: Sequence[GuidedSequence], seconds: float) -> None:
        """Wait until the grammars of all sequences are built, but not longer."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(each.is_built for each in sequences), seconds
            )

    def wait_ready(self, sequences: Sequence[GuidedSequence]) -> None:
        """Wait for the masks of sequences whose grammars are built."""
        with self._changed:
            self._changed.wait_for(lambda: all(each.is_ready for each in sequences))

    def _take_built(self, sequence: GuidedSequence) -> bool:
        """Give a sequence its guide, or the error of its grammar, if that was built."""
        with self._failing(sequence):
            matcher = self._matchers.find(sequence.grammar.text)
            if matcher is None:
                return False
            sequence.guide = Guide(matcher, sequence.grammar, sequence.eos_token_ids)
        sequence.is_built = True
        return True

    # The rest runs in the threads.

    def _build(self, text: str) -> None:
        with self._changed:
            if all(sequence.is_dropped for sequence, _ in self._waiting[text]):
                del self._waiting[text]
                return
        self._matchers.build(text)
        with self._changed:
            waiting = self._waiting.pop(text)
        for sequence, token_ids in waiting:
            if not sequence.is_dropped:
                self._take_built(sequence)
            with self._changed:
                sequence.is_built = True
                self._changed.notify_all()
            self._follow(sequence, token_ids)

    def _read(
        self, members: Sequence[tuple[int, GuidedSequence]], tokens: LateIds
    ) -> None:
        token_ids = tokens.read()
        # The quickest first, so that they do not wait for a slow one.
        for index, sequence in sorted(members, key=lambda m: m[1].mask_seconds):
            self._follow(sequence, token_ids[index : index + 1])

    def _follow(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        """Read tokens and compute the next mask."""
        with self._failing(sequence):
            if sequence.error is None and sequence.guide is not None:
                # Not the time on the clock: other threads may have the core.
                began = time.thread_time()
                for token_id in token_ids:
                    sequence.guide.read(token_id)
                sequence.guide.write_mask(sequence.mask)
                sequence.mask_seconds = time.thread_time() - began
                self._charge(sequence, len(token_ids))
        with self._changed:
            sequence.is_ready = True
            self._changed.notify_all()

    def _charge(self, sequence: GuidedSequence, num_tokens: int) -> None:
        """Count the time of a mask.

        Raises:
          GuideError: all masks of the grammar together took too long.
        """
        text = sequence.grammar.text
        with self._changed:
            account = self._accounts.setdefault(text, _Account())
            self._accounts.move_to_end(text)
            if len(self._accounts) > _MAX_ACCOUNTS:
                self._accounts.popitem(last=False)
            account.seconds += sequence.mask_seconds
            account.num_tokens += num_tokens
            if account.seconds > allow_seconds(account.num_tokens):
                raise GuideError("it takes too long to follow")

    @contextmanager
    def _failing(self, sequence: GuidedSequence) -> Iterator[None]:
        """Let an error in the block end the sequence, so that no step waits in vain."""
        try:
            with raising_guide_errors():
                yield
        except GuideError as error:
            sequence.error = str(error)
