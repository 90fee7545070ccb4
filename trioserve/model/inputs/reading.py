"""What a step's first layer reads."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ...types.plan import StepPlan
from ..attention.layout import StepInputs
from ..loading.loading import LoadedModel
from ..slots import SlotTables
from .inputs import EmbeddedInputs


class StepReader(Protocol):
    """Where the input of a model's first layer comes from."""

    def begin(self, plan: StepPlan) -> None:
        """Take in what a plan ends and starts; called for every plan, in their order."""

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return what a model takes in place of tokens, or tokens, by name.

        Args:
          plan: it has rows.
        """


class TokenReader:
    """Reads tokens, and the vectors that prompts hold besides.

    Args:
      tables: know which tokens slots have.
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
        embeds = self._embedded.embed(plan, inputs)
        if embeds is None:
            return {"input_ids": inputs.input_ids}
        return {"inputs_embeds": embeds}

    def _put_in_sampled(self, inputs: StepInputs) -> None:
        """Complete the input with tokens that the host may not have read yet."""
        sampled = self._tables.last_token_ids.index_select(0, inputs.sampled_slots)
        inputs.input_ids[0].index_copy_(0, inputs.sampled_tokens, sampled)
