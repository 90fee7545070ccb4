"""The time of a step, shared between decoding and prompts.

A step may take `max_step_seconds` while a prompt is computed, as far as its cost is known
(step_cost.py), even if no other request is there: one that comes waits for the steps in flight.
Chunks of prompts shrink as their context grows. The same limit holds while streams of several
requests wait for a step. If decoding takes too long, the rows of a request with many sequences
take turns (turns.py), and each request keeps at least one row. If several clients have streams,
their requests take turns, too, and each client keeps at least one row. Only the decoding of
one request alone has no limit.

Prompts have PROMPT_SHARE of each step, and at least one block of tokens, however long
decoding takes: otherwise a busy server would never compute them. So a step exceeds its
limit in two cases: by one block of tokens, or if one row for each request (of several
clients: for each client) takes more than a quarter of the limit. Then the step takes at most
four times as long as these rows. Without rows, that is four times the fixed cost of a step, so
a slow device does not spend most of its time on that.
"""

from __future__ import annotations

import math

from ..step_cost import StepCost
from .draft import Draft, count_context
from .sequence import Sequence
from .turns import DecodingTurns

# Part of a step's time that prompts may take, however long decoding takes. On a slow device
# or with many streams, prompts are then computed at three quarters of the possible speed,
# and streams run at a quarter of theirs during that time.
#
# bench/RESULTS.md ("The share of prompts in a step") compares 0.5, 0.75 and 0.9.
PROMPT_SHARE = 0.75


class TimeShare:
    """Limits the time of steps that several requests share.

    Args:
      cost: predicts how long rows take.
      max_step_seconds: the limit; infinite does not limit.

    Attributes:
      is_limited: there is a limit.
    """

    def __init__(self, cost: StepCost, max_step_seconds: float) -> None:
        self._cost = cost
        self._max_step_seconds = max_step_seconds
        self.is_limited = max_step_seconds < math.inf
        self._turns = DecodingTurns(cost)

    def limit(
        self, draft: Draft, decoding: list[Sequence], *, has_prompts: bool
    ) -> list[Sequence]:
        """Set the time that a step has for prompts, and return its decoding sequences.

        Args:
          decoding: sequences that could decode in the step.
          has_prompts: a prompt could be computed in the step.
        """
        limit = self._max_step_seconds
        if has_prompts:
            limit *= 1 - PROMPT_SHARE
        needed = self._predict(decoding)
        if needed > limit:
            rows_seconds = limit - self._cost.fixed_seconds
            decoding = self._turns.choose(decoding, rows_seconds)
            needed = self._predict(decoding)
        draft.seconds = max(
            self._max_step_seconds - needed,
            needed * PROMPT_SHARE / (1 - PROMPT_SHARE),
        )
        return decoding

    def _predict(self, decoding: list[Sequence]) -> float:
        """Return the seconds of a step with these rows alone."""
        return self._cost.predict_decoding(len(decoding), count_context(decoding))
