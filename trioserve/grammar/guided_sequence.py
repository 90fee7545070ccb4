"""A sequence with a grammar, on its way through the threads that compute its masks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ..types.output import SequenceError
from ..types.structured import Grammar
from .guide import Guide, Mask


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
