"""Follows one sequence with a grammar, and says which tokens may come next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from llguidance import LLMatcher
import numpy as np
import numpy.typing as npt

from ..types.output import SequenceError
from ..types.structured import Grammar
from .failures import GrammarError, check_panic, explain

Mask = npt.NDArray[np.int32]

# before   the first token opens the reasoning, or begins the answer
# opening  within the start tag
# inside   within the reasoning
# answer   behind it, or there is none
_Phase = Literal["before", "opening", "inside", "answer"]


def count_words(vocab_size: int) -> int:
    """Return how many int32 the mask of a vocabulary takes."""
    return -(-vocab_size // 32)


class Guide:
    """The state of one sequence in its grammar.

    The grammar describes the answer alone. A model may write its reasoning before it,
    between two tags; there every token is allowed unless it would end the sequence.

    Args:
      matcher: at the beginning of the grammar; the guide owns it.
      grammar: names the tags.
      eos_token_ids: tokens that end a sequence.
    """

    def __init__(
        self, matcher: LLMatcher, grammar: Grammar, eos_token_ids: Iterable[int]
    ) -> None:
        self._matcher = matcher
        self._start = grammar.start_token_ids
        self._end = grammar.end_token_ids
        self._eos = sorted(eos_token_ids)
        self._num_read = 0
        # The last tokens, at most as many as the end tag has.
        self._last: tuple[int, ...] = ()
        self._phase: _Phase = "answer"
        if self._end:
            self._phase = "inside" if grammar.is_open else "before"

    def read(self, token_id: int) -> None:
        """Take in the next token of the sequence.

        Raises:
          GrammarError: the grammar does not allow the token.
        """
        if self._phase == "before":
            self._phase = "opening" if self._opens(token_id) else "answer"
        if self._phase == "answer":
            if not self._matcher.consume_token(token_id):
                raise GrammarError(self._explain())
        elif self._phase == "opening":
            self._num_read += 1
            if self._num_read == len(self._start):
                self._phase = "inside"
        else:
            self._last = (*self._last, token_id)[-len(self._end) :]
            if self._last == self._end:
                self._phase = "answer"

    def write_mask(self, mask: Mask) -> None:
        """Write the tokens that may come next.

        Args:
          mask: (count_words(vocab_size),) int32; bit i % 32 of word i // 32 is set if
            token i may come.

        Raises:
          GrammarError: the grammar has become too complex.
        """
        if self._phase == "opening":
            mask[:] = 0
            _set(mask, self._start[self._num_read])
        elif self._phase == "inside":
            mask[:] = -1
            for token_id in self._eos:
                _clear(mask, token_id)
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if self._matcher.is_error():
                raise GrammarError(self._explain())
            # A grammar may name the end token, too, but the answer would end with it.
            if not self._matcher.is_accepting():
                for token_id in self._eos:
                    _clear(mask, token_id)
            if self._phase == "before":
                _set(mask, self._start[0])

    def _opens(self, token_id: int) -> bool:
        """Return whether the first token of the sequence begins the start tag."""
        return token_id == self._start[0] and not self._matcher.validate_tokens(
            [token_id]
        )

    def _explain(self) -> str:
        """Return why the matcher cannot go on.

        Raises:
          LibraryFailed: a defect of the library.
        """
        message = self._matcher.get_error()
        check_panic(message)
        return explain(message)


def _set(mask: Mask, token_id: int) -> None:
    mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


def _clear(mask: Mask, token_id: int) -> None:
    mask.view(np.uint32)[token_id // 32] &= np.uint32(
        ~(1 << token_id % 32) & 0xFFFFFFFF
    )


class GuideState(Enum):
    """The state of a guided sequence.

    BUILDING --> COMPUTING <--> READY
         \\           |           /
          +----> FAILED, DROPPED
    """

    # Its grammar is being built.
    BUILDING = auto()
    # A thread reads its last tokens and computes its mask.
    COMPUTING = auto()
    # Its mask is valid, and waits for a step.
    READY = auto()
    # It cannot go on.
    FAILED = auto()
    # It has left its slot.
    DROPPED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class GuidedSequence:
    """One sequence with a grammar.

    Args:
      eos_token_ids: tokens that end it.
      mask: the tokens that may come next; valid while READY. See Guide.write_mask.
      num_tokens: output tokens that its guide has read, or will have read when it is READY.

    Attributes:
      guide: None until the grammar is built.
      error: the reason for FAILED.
    """

    grammar: Grammar
    eos_token_ids: frozenset[int]
    mask: Mask
    num_tokens: int
    state: GuideState = GuideState.BUILDING
    guide: Guide | None = None
    error: SequenceError | None = None

    @property
    def is_settled(self) -> bool:
        """True if a step need not wait for it."""
        return self.state in (GuideState.READY, GuideState.FAILED)
