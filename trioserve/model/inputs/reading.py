"""Read the tokens of a step, and the vectors that prompts hold besides."""

from __future__ import annotations

from torch import Tensor

from ...types.plan import StepPlan
from ..runtimes.loaded import LoadedModel
from ..step.layout import StepInputs
from .inputs import EmbeddedInputs


class TokenReader:
    """The reader of a model, or of a stage, that has the first layer."""

    def __init__(self, model: LoadedModel) -> None:
        self._embedded = EmbeddedInputs(model)

    def begin(self, plan: StepPlan) -> None:
        self._embedded.drop(plan.ends)
        for start in plan.starts:
            self._embedded.start(start)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        return self._embedded.embed(plan, inputs)
