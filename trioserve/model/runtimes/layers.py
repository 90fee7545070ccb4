"""The layers of a model, ready to run a step, in whatever way they run.

modules/   transformers' modules, with the attention of a backend
kernels    this project's own, if the model was recognised (native/ on CPUs, fused/ on GPUs)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ...types.plan import StepRow
from ..adapters.description import LayerAdapters
from ..states.pool import StateCopies
from ..step.layout import StepInputs
from .deepstack import ADDED
from .loaded import LoadedModel
from .on_kernels import LayersOnKernels


class StepLayers(Protocol):
    """The layers, ready for one step."""

    def compute(self, arguments: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
        """Run the step.

        Args:
          arguments: the model's inputs, by the names of transformers.
          tokens: the flat tokens whose logits are wanted.

        Returns:
          (len(tokens), vocab_size) logits; what the next stage reads, at a stage of a
          pipeline that is not the last
        """


class Layers(Protocol):
    """The layers of a model, with their KV cache.

    Attributes:
      copies: the copies of their states; None if they keep none.
      adapters: those that they run.
    """

    @property
    def copies(self) -> StateCopies | None: ...
    @property
    def adapters(self) -> LayerAdapters: ...

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Return the order of rows among the flat tokens that is fastest to read."""

    def prepare(self, max_num_seqs: int) -> None:
        """Get ready to run decodes of up to so many sequences, before any comes."""

    def begin(self, inputs: StepInputs) -> StepLayers:
        """Lay out the inputs of the layers for one step, whose rows are in `order`."""


class KernelLayers:
    """The layers of a model on this project's kernels."""

    def __init__(self, model: LoadedModel, layers: LayersOnKernels) -> None:
        self._model = model
        self._layers = layers
        self.order = layers.order
        self.prepare = layers.prepare
        self.copies = layers.copies
        self.adapters = layers.adapters

    def begin(self, inputs: StepInputs) -> _KernelStep:
        return _KernelStep(self._model, self._layers, inputs)


class _KernelStep:
    def __init__(
        self, model: LoadedModel, layers: LayersOnKernels, inputs: StepInputs
    ) -> None:
        self._model = model
        self._layers = layers
        self._inputs = inputs

    def compute(self, arguments: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
        vectors = arguments.get("inputs_embeds")
        if vectors is None:
            embed = self._model.model.get_input_embeddings()
            vectors = embed(arguments["input_ids"])
        output = self._layers.run(
            vectors[0],
            self._inputs,
            tokens,
            arguments["position_ids"],
            arguments.get(ADDED),
        )
        return self._model.join_logits(output)
