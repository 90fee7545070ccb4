"""The ends of a model whose layers are all here: it reads tokens and samples tokens."""

from __future__ import annotations

from ..inputs.reading import TokenReader
from ..runtimes.loaded import LoadedModel
from ..sampling.extensions import Extensions
from ..sampling.writing import SamplingWriter
from ..step.slots import SlotTables
from .consensus import FollowingWriter, lead
from .protocols import StepReader, StepWriter


class WholeModelEnds:
    """The ends of a model whose layers are all here."""

    def make_reader(self, model: LoadedModel, tables: SlotTables) -> StepReader:
        return TokenReader(model)

    def make_writer(
        self, model: LoadedModel, tables: SlotTables, extensions: Extensions
    ) -> StepWriter:
        return make_sampling_writer(model, tables, extensions)


def make_sampling_writer(
    model: LoadedModel, tables: SlotTables, extensions: Extensions
) -> StepWriter:
    """Make the writer that samples from a model's logits.

    Raises:
      InvalidConfig: a plug-in cannot be made.
    """
    group = model.tensor_group
    if group is not None and not group.shard.is_first:
        return FollowingWriter(tables, group)
    sampling = SamplingWriter(model, tables, extensions)
    return sampling if group is None else lead(sampling, tables, group)
