"""Read the tokens of a step, and the vectors that prompts hold besides."""

from __future__ import annotations

from torch import Tensor

from ...types.plan import StepPlan
from ..runtimes.loaded import LoadedModel
from ..step.layout import StepInputs
from ..step.slots import SlotTables
from .inputs import EmbeddedInputs


class TokenReader:
    """The reader of a model, or of a stage, that has the first layer.

    Args:
      tables: the tokens of each slot.
    """

    def __init__(self, model: LoadedModel, tables: SlotTables) -> None:
        self._embedded = EmbeddedInputs(model)
        self._tables = tables

    def begin(self, plan: StepPlan) -> None:
        self._embedded.drop(plan.ends)
        for start in plan.starts:
            self._embedded.start(start)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        self._put_in_sampled(inputs)
        return self._embedded.embed(plan, inputs) or {"input_ids": inputs.input_ids}

    def _put_in_sampled(self, inputs: StepInputs) -> None:
        """Put in tokens that earlier steps sampled and the host may not know yet."""
        sampled = self._tables.last_token_ids.index_select(0, inputs.sampled_slots)
        inputs.input_ids[0].index_copy_(0, inputs.sampled_tokens, sampled)
