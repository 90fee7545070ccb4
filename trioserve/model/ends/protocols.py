"""The protocols of a step's two ends; the runner uses only these.

reader  -- token ids, vectors -->  layers  -- logits -->  writer
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from ...types.plan import StepPlan
from ..runtimes.loaded import LoadedModel
from ..sampling.extensions import Extensions
from ..sampling.launched import LaunchedStep
from ..sampling.selecting import LogitRows
from ..step.layout import StepInputs
from ..step.plain import StepOutput
from ..step.slots import SlotTables


class StepReader(Protocol):
    """Gets the input of a model's first layer."""

    def begin(self, plan: StepPlan) -> None:
        """Take in the starts and ends of a plan; called for every plan, in their order."""

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return the model's arguments by name, except for positions.

        Args:
          plan: it has rows.

        Returns:
          none if the layers read the step's tokens alone
        """


class StepWriter(Protocol):
    """Uses the output of a model's last layer.

    Attributes:
      is_capturable: captured steps may choose tokens for the plain rows of `select`.
    """

    @property
    def is_capturable(self) -> bool: ...

    def begin(self, plan: StepPlan) -> None:
        """Take in the starts and ends of a plan; called for every plan, in their order."""

    def find_skipped(self, plan: StepPlan) -> Collection[int]:
        """Decide which rows `write` will skip; it decides itself if nobody asks before.

        Returns:
          their slots
        """

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        """Return the tokens whose logits a step needs: none before the last stage."""

    def write(
        self, plan: StepPlan, rows: LogitRows, output: StepOutput
    ) -> LaunchedStep:
        """Use the output of a step.

        Args:
          rows: from `select`.
          output: the result of StepLayers.compute for them.
        """


class StepEnds(Protocol):
    """Makes the two ends of a model."""

    def make_reader(self, model: LoadedModel, tables: SlotTables) -> StepReader: ...

    def make_writer(
        self, model: LoadedModel, tables: SlotTables, extensions: Extensions
    ) -> StepWriter:
        """Make the writer.

        Raises:
          InvalidConfig: a plug-in cannot be made.
        """
