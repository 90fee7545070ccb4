"""Builds and advances guides in threads, while the device computes.

    open -->    building     grammars that are new
                   |
    advance --> quick        masks
                   |
                costly       masks of grammars whose masks take long

So neither a new grammar nor a costly one delays the masks of the others. The threads spend
nearly all their time inside llguidance, which releases the GIL.

A step needs the masks of its sequences when it samples. By then they are ready, as a rule:
they are computed from the moment at which the tokens before are known, beside the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
import time
from typing import Protocol

from llguidance import LLTokenizer
import numpy as np

from ..types.output import SequenceError
from ..types.structured import Grammar
from .costs import MaskCosts
from .failures import GrammarError, LibraryFailed, raising_library_failures
from .guide import Guide, count_words
from .guided_sequence import GuidedSequence, GuideState
from .matchers import Matchers


class LateIds(Protocol):
    """The tokens of a step, which may not have reached the host yet."""

    def read(self) -> list[int]:
        """Wait for the ids, one for each row of the step."""


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
        # A known grammar does not wait behind new ones of others.
        if self._take_built(sequence):
            self._quick.submit(self._follow, sequence, token_ids)
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
        """Forget a sequence; what a thread does for it now is the last."""
        self._enter(sequence, GuideState.DROPPED)

    def is_costly(self, grammar: Grammar) -> bool:
        """Whether the masks of a grammar take long."""
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

    def _take_built(self, sequence: GuidedSequence) -> bool:
        """Give a sequence its guide, if its grammar was built; False if it was not."""
        with self._failing(sequence):
            matcher = self._matchers.find(sequence.grammar.text)
            if matcher is None:
                return False
            sequence.guide = Guide(matcher, sequence.grammar, sequence.eos_token_ids)
            self._enter(sequence, GuideState.COMPUTING)
        return True

    # The rest runs in the threads.

    def _build(self, text: str) -> None:
        with self._changed:
            if all(each.state is GuideState.DROPPED for each, _ in self._waiting[text]):
                del self._waiting[text]
                return
        try:
            self._matchers.build(text)
        finally:
            with self._changed:
                waiting = self._waiting.pop(text)
            for sequence, token_ids in waiting:
                self._begin(sequence, token_ids)

    def _begin(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        """Go on with a sequence after the build of its grammar."""
        if sequence.state is GuideState.DROPPED:
            return
        with self._failing(sequence):
            if not self._take_built(sequence):
                # The log has the cause, as the context of this error.
                raise RuntimeError("the grammar was not built")
            self._quick.submit(self._follow, sequence, token_ids)

    def _read(
        self, members: Sequence[tuple[int, GuidedSequence]], tokens: LateIds
    ) -> None:
        token_ids = tokens.read()
        for index, sequence in members:
            self._follow(sequence, token_ids[index : index + 1])

    def _follow(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        """Read tokens and compute the next mask, in the thread for such masks."""
        if sequence.state is not GuideState.COMPUTING:
            return
        if self.is_costly(sequence.grammar):
            self._costly.submit(self._compute, sequence, token_ids)
        else:
            self._compute(sequence, token_ids)

    def _compute(self, sequence: GuidedSequence, token_ids: Sequence[int]) -> None:
        if sequence.state is not GuideState.COMPUTING:
            return
        with self._failing(sequence):
            assert sequence.guide is not None, "its grammar is built"
            # Not the time on the clock: other threads may have the core.
            began = time.thread_time()
            for token_id in token_ids:
                sequence.guide.read(token_id)
            sequence.guide.write_mask(sequence.mask)
            self._charge(sequence, time.thread_time() - began, len(token_ids))
            self._enter(sequence, GuideState.READY)

    def _charge(
        self, sequence: GuidedSequence, seconds: float, num_tokens: int
    ) -> None:
        """Count the time of a mask.

        Raises:
          GrammarError: all masks of the grammar together took too long.
        """
        with self._changed:
            text = sequence.grammar.text
            if not self._costs.charge(text, seconds, num_tokens):
                raise GrammarError("it takes too long to follow")

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
        self._enter(sequence, GuideState.FAILED)
