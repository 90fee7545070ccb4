"""The tokens of a step whose logits are needed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...types.plan import StepPlan, StepRow
from ..step.layout import StepInputs
from ..step.plain import PlainRows
from ..step.slots import SlotTables


def _make_none() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRows:
    """The tokens of a step whose logits are needed.

    Args:
      sampled: the last flat token of each row that samples, in batch order.
      slots, num_outputs: (num_sampled,) int64, their slots, and the output tokens of each so
        far
      prompts: row -> flat tokens whose logits give log probabilities of its prompt.
      plain: the numbers by which the layers may choose all tokens; None if they may not.
    """

    sampled: tuple[int, ...] = ()
    slots: NDArray[np.int64] = field(default_factory=_make_none)
    num_outputs: NDArray[np.int64] = field(default_factory=_make_none)
    prompts: dict[StepRow, range] = field(default_factory=dict)
    plain: PlainRows | None = None

    @property
    def tokens(self) -> list[int]:
        """The flat tokens in the order of the logits' rows."""
        prompt_tokens = [token for span in self.prompts.values() for token in span]
        return [*self.sampled, *prompt_tokens]


class LogitSelector:
    """Selects the rows that sample, and prompts with log probabilities.

    Plans alone decide, so all processes that share a model select the same.

    Attributes:
      num_prompt_top: slot -> alternatives to report, for slots that asked for
        prompt_logprobs.
    """

    def __init__(self, tables: SlotTables) -> None:
        self.num_prompt_top: dict[int, int] = {}
        self._tables = tables

    def begin(self, plan: StepPlan) -> None:
        """Take in the starts of a plan; called for every plan, in their order."""
        for start in plan.starts:
            self.num_prompt_top.pop(start.slot, None)
            if start.sampling.prompt_logprobs is not None:
                self.num_prompt_top[start.slot] = start.sampling.prompt_logprobs

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        pairs = zip(plan.rows, inputs.last_tokens)
        sampled = [token for row, token in pairs if row.sample]
        index = np.array(sampled, dtype=np.int64)
        slots = inputs.slots[index]
        prompts = self._tables.num_prompt_tokens[slots]
        return LogitRows(
            sampled=tuple(sampled),
            slots=slots,
            num_outputs=inputs.positions[index] + 1 - prompts,
            prompts=self._find_prompt_spans(plan, inputs),
        )

    def _find_prompt_spans(
        self, plan: StepPlan, inputs: StepInputs
    ) -> dict[StepRow, range]:
        """Return the flat tokens of prompts whose log probabilities are reported.

        Each of them predicts the next token of its prompt.
        """
        spans: dict[StepRow, range] = {}
        if not self.num_prompt_top:
            return spans
        for row, first in zip(plan.rows, inputs.first_tokens):
            if row.slot in self.num_prompt_top:
                last_target = int(self._tables.num_prompt_tokens[row.slot]) - 1
                end = min(row.end, last_target)
                if row.start < end:
                    spans[row] = range(first, first + end - row.start)
        return spans
