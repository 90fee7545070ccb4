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
from ..step.plain import ChosenTokens, PlainRows, StepOutput
from .deepstack import ADDED
from .loaded import LoadedModel
from .on_kernels import LayersOnKernels


class StepLayers(Protocol):
    """The layers, ready for one step."""

    def compute(
        self,
        arguments: dict[str, Tensor],
        tokens: Sequence[int],
        plain: PlainRows | None = None,
    ) -> StepOutput:
        """Run the step.

        Args:
          arguments: the model's inputs, by the names of transformers; without them it reads
            the step's tokens at their places in the sequences.
          tokens: the flat tokens whose logits are wanted.
          plain: the numbers by which next tokens may be chosen in place of logits.

        Returns:
          (len(tokens), vocab_size) logits, or the next tokens; what the next stage reads, at
          a stage of a pipeline that is not the last
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

    def prepare(self, max_num_seqs: int, *, chooses: bool) -> None:
        """Get ready to run decodes of up to so many sequences, before any comes.

        Args:
          chooses: the layers may choose tokens, by kernels that agree with the sampler.
        """

    def begin(self, inputs: StepInputs) -> StepLayers:
        """Lay out the inputs of the layers for one step, whose rows are in `order`."""


class KernelLayers:
    """The layers of a model on this project's kernels."""

    def __init__(self, model: LoadedModel, layers: LayersOnKernels) -> None:
        self._model = model
        self._layers = layers
        self.order = layers.order
        self.copies = layers.copies
        self.adapters = layers.adapters

    def prepare(self, max_num_seqs: int, *, chooses: bool) -> None:
        # Processes that share the layers add up their parts of vectors and of logits.
        is_whole = self._model.tensor_group is None
        reads = is_whole and not self._model.begin
        self._layers.prepare(
            max_num_seqs,
            embed=self._model.model.get_input_embeddings() if reads else None,
            chooses=chooses and is_whole,
        )

    def begin(self, inputs: StepInputs) -> _KernelStep:
        return _KernelStep(self._model, self._layers, inputs)


class _KernelStep:
    def __init__(
        self, model: LoadedModel, layers: LayersOnKernels, inputs: StepInputs
    ) -> None:
        self._model = model
        self._layers = layers
        self._inputs = inputs

    def compute(
        self,
        arguments: dict[str, Tensor],
        tokens: Sequence[int],
        plain: PlainRows | None = None,
    ) -> StepOutput:
        layers, inputs = self._layers, self._inputs
        vectors = arguments.get("inputs_embeds")
        positions = arguments.get("position_ids")
        output: StepOutput | None = None
        # Images have places of their own.
        if not inputs.has_chunks and positions is None:
            if vectors is None and not layers.reads_tokens:
                vectors = self._embed()
            given = None if vectors is None else vectors[0]
            output = layers.replay(inputs, tokens, given, plain)
        if output is None:
            vectors = self._embed() if vectors is None else vectors
            positions = inputs.position_ids if positions is None else positions
            added = arguments.get(ADDED)
            output = layers.run(vectors[0], inputs, tokens, positions, added)
        if isinstance(output, ChosenTokens):
            return output
        return self._model.join_logits(output)

    def _embed(self) -> Tensor:
        """Look up the step's tokens, (1, num_tokens, hidden_size)."""
        vectors: Tensor = self._model.model.get_input_embeddings()(
            self._inputs.input_ids
        )
        return vectors
