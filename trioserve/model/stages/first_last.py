"""How a stage's steps begin and end, where they are not a whole model's.

first stage   tokens   -> layers -> sends hidden states
others        receives -> layers -> sends hidden states
last stage    receives -> layers -> samples, and sends the tokens
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...types.logits import LogitsProcessor
from ...types.plan import SlotStart, StepPlan
from ...types.transfers import AwaitedTokens, SampledTransfer
from ..attention.layout import StepInputs
from ..inputs.reading import StepReader, TokenReader
from ..loading.loading import LoadedModel
from ..slots import SlotTables
from ..tensors import send_ids
from ..writing import LaunchedStep, SamplingWriter, StepWriter
from .links import StageLinks
from .stage import LoadedStage


def make_reader(
    model: LoadedModel, tables: SlotTables, links: StageLinks
) -> StepReader:
    """Return what a stage's steps begin with."""
    assert isinstance(model, LoadedStage), "only stages have links"
    if model.partition.is_first:
        return _FirstReader(model, tables, links)
    return _LaterReader(model, links)


def make_writer(
    model: LoadedModel,
    tables: SlotTables,
    links: StageLinks,
    logits_processors: Sequence[type[LogitsProcessor]],
) -> StepWriter:
    """Return what a stage's steps end with."""
    assert isinstance(model, LoadedStage), "only stages have links"
    if model.partition.is_last:
        return _LastWriter(SamplingWriter(model, tables, logits_processors), links)
    return _EarlierWriter(model, links)


class _FirstReader:
    """Reads tokens, of which the last stage has sampled some."""

    def __init__(
        self, model: LoadedStage, tables: SlotTables, links: StageLinks
    ) -> None:
        self._tokens = TokenReader(model, tables)
        self._tables = tables
        self._links = links
        # The engine has at most one more step in flight than there are stages.
        self._awaited = AwaitedTokens(links.num_stages + 1)
        self._due: list[SampledTransfer] = []

    def begin(self, plan: StepPlan) -> None:
        self._tokens.begin(plan)
        # Waited for in `read`, when all that can be done without them is done.
        self._due += self._awaited.take(plan)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        for arrival in self._due:
            self._take_in(arrival)
        self._due.clear()
        self._links.expect_sampled(plan)
        return self._tokens.read(plan, inputs)

    def _take_in(self, arrival: SampledTransfer) -> None:
        token_ids = self._links.receive_sampled(arrival.step_id)
        places = [i for i, slot in enumerate(arrival.slots) if slot is not None]
        slots = [slot for slot in arrival.slots if slot is not None]
        if len(slots) < len(arrival.slots):
            token_ids = token_ids[send_ids(places, token_ids.device)]
        self._tables.keep_sampled(send_ids(slots, token_ids.device), token_ids)


class _LaterReader:
    """Reads what the stage before gives."""

    def __init__(self, model: LoadedStage, links: StageLinks) -> None:
        self._model = model
        self._links = links

    def begin(self, plan: StepPlan) -> None:
        # While this stage lays the step out, the tensors travel.
        self._links.expect(plan)

    def read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        return self._model.enter(self._links.receive_hidden(plan))


class _EarlierWriter:
    """Hands on what its layers give; samples nothing."""

    def __init__(self, model: LoadedStage, links: StageLinks) -> None:
        self._model = model
        self._links = links

    def start(self, start: SlotStart) -> None:
        pass

    def write(
        self, plan: StepPlan, inputs: StepInputs, read: dict[str, Tensor]
    ) -> LaunchedStep:
        self._links.send_hidden(plan, self._model.leave(read))
        return LaunchedStep(step_id=plan.step_id)


class _LastWriter:
    """Samples, and tells the first stage what."""

    def __init__(self, sampling: SamplingWriter, links: StageLinks) -> None:
        self._sampling = sampling
        self._links = links

    def start(self, start: SlotStart) -> None:
        self._sampling.start(start)

    def write(
        self, plan: StepPlan, inputs: StepInputs, read: dict[str, Tensor]
    ) -> LaunchedStep:
        launched = self._sampling.write(plan, inputs, read)
        sampled = launched.sampled
        self._links.send_sampled(
            plan, None if sampled is None else sampled.ids.on_device
        )
        return launched
