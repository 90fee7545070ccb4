"""The two ends of a stage's steps.

first stage   tokens   -> layers -> sends hidden states
other stages  receives -> layers -> sends hidden states
last stage    receives -> layers -> samples, and sends the tokens
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from ...types.plan import StepPlan
from ...types.transfers import AwaitedTokens, SampledTransfer
from ..device.tensors import send_ids
from ..inputs.reading import TokenReader
from ..runtimes.loaded import LoadedModel
from ..sampling.extensions import Extensions
from ..sampling.launched import LaunchedStep
from ..sampling.selecting import LogitRows
from ..stages.links import StageLinks
from ..stages.stage import LoadedStage
from ..step.layout import StepInputs
from ..step.plain import StepOutput
from ..step.slots import SlotTables
from .consensus import SendingWriter
from .protocols import StepReader, StepWriter
from .whole import make_sampling_writer


class StageEnds:
    """The StepEnds of a stage.

    Args:
      links: to the other stages.
    """

    def __init__(self, links: StageLinks) -> None:
        self._links = links

    def make_reader(self, model: LoadedModel, tables: SlotTables) -> StepReader:
        assert isinstance(model, LoadedStage), "only stages have links"
        if model.partition.is_first:
            return _FirstReader(model, tables, self._links)
        return _LaterReader(model, self._links)

    def make_writer(
        self, model: LoadedModel, tables: SlotTables, extensions: Extensions
    ) -> StepWriter:
        assert isinstance(model, LoadedStage), "only stages have links"
        if model.partition.is_last:
            sampling = make_sampling_writer(model, tables, extensions)
            return SendingWriter(sampling, tables, self._links.send_sampled)
        return _EarlierWriter(self._links)


class _FirstReader:
    """Reads tokens, and receives sampled tokens from the last stage."""

    def __init__(
        self, model: LoadedStage, tables: SlotTables, links: StageLinks
    ) -> None:
        self._tokens = TokenReader(model)
        self._tables = tables
        self._links = links
        # The engine has at most one more step in flight than there are stages.
        self._awaited = AwaitedTokens(links.num_stages + 1)
        self._due: list[SampledTransfer] = []

    def begin(self, plan: StepPlan) -> None:
        self._tokens.begin(plan)
        # `read` waits for them, after all the work that does not need them.
        self._due += self._awaited.take(plan)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        for transfer in self._due:
            self._take_in(transfer)
        self._due.clear()
        self._links.expect_sampled(plan)
        return self._tokens.read(plan, inputs)

    def _take_in(self, transfer: SampledTransfer) -> None:
        token_ids = self._links.receive_sampled(transfer.step_id)
        places = [i for i, slot in enumerate(transfer.slots) if slot is not None]
        slots = [slot for slot in transfer.slots if slot is not None]
        if len(slots) < len(transfer.slots):
            token_ids = token_ids[send_ids(places, token_ids.device)]
        self._tables.keep_sampled(send_ids(slots, token_ids.device), token_ids)


class _LaterReader:
    """Receives hidden states from the stage before."""

    def __init__(self, model: LoadedStage, links: StageLinks) -> None:
        self._model = model
        self._links = links

    def begin(self, plan: StepPlan) -> None:
        # The hidden states come while this stage lays the step out.
        self._links.expect(plan)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        return self._model.enter(self._links.receive_hidden(plan))


class _EarlierWriter:
    """Sends hidden states to the next stage; samples nothing."""

    is_capturable = False

    def __init__(self, links: StageLinks) -> None:
        self._links = links

    def begin(self, plan: StepPlan) -> None:
        pass

    def find_skipped(self, plan: StepPlan) -> Collection[int]:
        # Only the last stage knows. The scheduler preempts the sequence of a skipped row.
        return ()

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        return LogitRows()

    def write(
        self, plan: StepPlan, rows: LogitRows, output: StepOutput
    ) -> LaunchedStep:
        assert isinstance(output, Tensor), "a stage without a head chooses nothing"
        self._links.send_hidden(plan, output)
        return LaunchedStep(step_id=plan.step_id)
