"""Builds and advances guides in threads, while the device computes.

    open -->    building     grammars that are new
                   |
    advance --> quick        masks
                   |
                costly       masks of grammars whose masks take long

So neither a new grammar nor a costly one delays the masks of the others. The first mask of a
grammar counts as costly. The threads spend nearly all their time inside llguidance, which
releases the GIL.

Copies of a matcher share its lexer, and its lock. While one computes a mask, most calls of
another wait for that lock, and hold the GIL. So at no time do two threads use copies of the
same matcher.

A step needs the masks of its sequences when it samples. By then they are ready, as a rule:
they are computed from the moment at which the tokens before are known, beside the layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
import time
from typing import Final, Protocol

from llguidance import LLTokenizer
import numpy as np

from ..processes.threads.heap import trim_heap
from ..types.output import SequenceError
from ..types.structured import Grammar
from .costs import MaskCosts
from .failures import GrammarError, LibraryFailed, raising_library_failures
from .guide import Guide, GuidedSequence, GuideState, count_words
from .matchers import MAX_IDLE_BYTES, BuiltGrammar, Matchers

_TOO_LONG: Final = "it takes too long to follow"

# Dropped grammars of less are not worth a trim of the heap, which takes some milliseconds.
_WORTH_BYTES: Final = 2**24


class LateIds(Protocol):
    """The tokens of a step, which may not have reached the host yet."""

    def read(self) -> list[int]:
        """Wait for the ids, one for each row of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideStatistics:
    """The memory held by guides.

    Args:
      num_sequences: opened, and not dropped.
      num_bytes: of the grammars that are kept for further sequences, estimated.
    """

    num_sequences: int
    num_bytes: int


class GuideWorkers:
    """The threads, and the built grammars.

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
        self._costs = MaskCosts()
        # Grammar -> its masks in the thread for costly ones.
        self._num_costly: Counter[str] = Counter()
        # Sequences that have not been dropped.
        self._num_open = 0
        # Each has one thread, which starts with its first task.
        self._building = ThreadPoolExecutor(1, "grammar builder")
        self._quick = ThreadPoolExecutor(1, "grammar masks")
        self._costly = ThreadPoolExecutor(1, "costly grammar masks")

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
            num_tokens=len(token_ids),
        )
        with self._changed:
            self._num_open += 1
            is_spent = self._costs.is_spent(grammar.text)
        if is_spent:
            with self._failing(sequence):
                raise GrammarError(_TOO_LONG)
            return sequence
        # A known grammar does not wait behind new ones of others.
        built = self._matchers.find(grammar.text)
        if built is not None:
            self._begin(sequence, token_ids, built)
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
          members: (index among the tokens, sequence); the sequences are READY.
        """
        for _, sequence in members:
            sequence.num_tokens += 1
            self._enter(sequence, GuideState.COMPUTING)
        self._quick.submit(self._read, members, tokens)

    def drop(self, sequence: GuidedSequence) -> None:
        """Forget a sequence; a thread may still finish its present work for it."""
        with self._changed:
            self._enter(sequence, GuideState.DROPPED)
            sequence.guide = None
            self._num_open -= 1
            if not self._num_open:
                # Behind all that the threads still do for sequences.
                self._quick.submit(self._costly.submit, self._give_back)

    def statistics(self) -> GuideStatistics:
        """Return the current numbers."""
        return GuideStatistics(
            num_sequences=self._num_open, num_bytes=self._matchers.num_bytes
        )

    def is_costly(self, grammar: Grammar) -> bool:
        """Return whether the masks of a grammar take long."""
        with self._changed:
            return self._costs.is_costly(grammar.text)

    def wait_all(self, sequences: Sequence[GuidedSequence], seconds: float) -> None:
        """Wait until no sequence is BUILDING or COMPUTING, but not longer."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(each.is_settled for each in sequences), seconds
            )

    def wait_any(self, sequences: Sequence[GuidedSequence], seconds: float) -> None:
        """Wait until a sequence is neither BUILDING nor COMPUTING, but not longer."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(each.is_settled for each in sequences), seconds
            )

    def _enter(self, sequence: GuidedSequence, state: GuideState) -> None:
        """Change the state of a sequence, unless it has left its slot."""
        with self._changed:
            if sequence.state is not GuideState.DROPPED:
                sequence.state = state
            if sequence.is_settled:
                self._changed.notify_all()

    def _begin(
        self,
        sequence: GuidedSequence,
        token_ids: Sequence[int],
        built: BuiltGrammar | None,
    ) -> None:
        """Go on with a sequence whose grammar was built; None if that has failed."""
        if sequence.state is GuideState.DROPPED:
            return
        with self._failing(sequence):
            if built is None:
                # The log has the cause, as the context of this error.
                raise RuntimeError("the grammar was not built")
            sequence.guide = Guide(
                built.open(), sequence.grammar, sequence.eos_token_ids
            )
            self._enter(sequence, GuideState.COMPUTING)
            self._quick.submit(self._follow, sequence, token_ids)

    # The rest runs in the threads.

    def _build(self, text: str) -> None:
        with self._changed:
            if all(each.state is GuideState.DROPPED for each, _ in self._waiting[text]):
                del self._waiting[text]
                return
        built = None
        try:
            built = self._matchers.build(text)
        finally:
            with self._changed:
                waiting = self._waiting.pop(text)
            for sequence, token_ids in waiting:
                self._begin(sequence, token_ids, built)

    def _give_back(self) -> None:
        """Give memory back, because no sequence has a grammar now."""
        if not self._num_open:
            self._matchers.shrink(MAX_IDLE_BYTES)
            if self._matchers.num_dropped_bytes > _WORTH_BYTES:
                self._matchers.num_dropped_bytes = 0
                trim_heap()

    def _read(
        self, members: Sequence[tuple[int, GuidedSequence]], tokens: LateIds
    ) -> None:
        token_ids = tokens.read()
        for index, sequence in members:
            self._follow(sequence, token_ids[index : index + 1])

    def _follow(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        """Read tokens and compute the next mask, in the thread for such masks."""
        text = sequence.grammar.text
        with self._changed:
            is_costly = (
                not self._costs.is_known(text)
                or self._costs.is_costly(text)
                or text in self._num_costly
            )
            if is_costly:
                self._num_costly[text] += 1
        if is_costly:
            self._costly.submit(self._compute_costly, sequence, token_ids)
        else:
            self._compute(sequence, token_ids)

    def _compute_costly(
        self, sequence: GuidedSequence, token_ids: Sequence[int]
    ) -> None:
        try:
            self._compute(sequence, token_ids)
        finally:
            with self._changed:
                self._num_costly -= Counter((sequence.grammar.text,))

    def _compute(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        guide = sequence.guide
        if guide is None or sequence.state is not GuideState.COMPUTING:
            return
        with self._failing(sequence):
            try:
                self._advance(guide, sequence, token_ids)
            except BaseException:
                # Its lexer may be full, and then it would fail all others.
                self._matchers.forget(sequence.grammar.text)
                raise
            self._enter(sequence, GuideState.READY)

    def _advance(
        self, guide: Guide, sequence: GuidedSequence, token_ids: Sequence[int]
    ) -> None:
        # Not the time on the clock: other threads may have the core.
        began = time.thread_time()
        try:
            for token_id in token_ids:
                guide.read(token_id)
            guide.write_mask(sequence.mask)
        finally:
            self._charge(sequence, time.thread_time() - began, len(token_ids))

    def _charge(
        self, sequence: GuidedSequence, seconds: float, num_tokens: int
    ) -> None:
        """Count the time of a mask.

        Raises:
          GrammarError: all masks of the grammar together took too long.
        """
        text = sequence.grammar.text
        self._matchers.note_work(text, seconds)
        with self._changed:
            if not self._costs.charge(text, seconds, num_tokens):
                raise GrammarError(_TOO_LONG)

    @contextmanager
    def _failing(self, sequence: GuidedSequence) -> Iterator[None]:
        """Let an error in the block end the sequence, so that no step waits in vain."""
        try:
            with raising_library_failures():
                yield
        except GrammarError as error:
            param = sequence.grammar.param
            self._fail(sequence, SequenceError(param=param, reason=str(error)))
        except LibraryFailed:
            self._fail(sequence, SequenceError())

    def _fail(self, sequence: GuidedSequence, error: SequenceError) -> None:
        sequence.error = error
        sequence.guide = None
        self._enter(sequence, GuideState.FAILED)
