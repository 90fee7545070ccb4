"""The protocols of a model that this project's own kernels run: on CPUs, and on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...types.plan import StepRow
from ..adapters.description import LayerAdapters
from ..states.pool import StateCopies
from ..step.layout import StepInputs
from ..step.plain import PlainRows, StepOutput
from ..step.scans import Scans
from ..step.slots import SlotTables


class LayersOnKernels(Protocol):
    """The layers of a decoder, with a KV cache of their own.

    Attributes:
      copies, adapters: as in Layers (layers.py).
      reads_tokens: `replay` looks up the vectors of tokens itself.
    """

    @property
    def copies(self) -> StateCopies | None: ...
    @property
    def adapters(self) -> LayerAdapters: ...
    @property
    def reads_tokens(self) -> bool: ...

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Return the order of rows among the flat tokens that is fastest to read."""

    def prepare(
        self,
        max_num_seqs: int,
        *,
        embed: Callable[[Tensor], Tensor] | None = None,
        chooses: bool = False,
    ) -> None:
        """Get ready to run decodes of up to so many sequences, before any comes.

        Args:
          embed: returns the vectors of tokens; None if the layers get vectors.
          chooses: see Layers.prepare.
        """

    def replay(
        self,
        inputs: StepInputs,
        tokens: Sequence[int],
        vectors: Tensor | None = None,
        plain: PlainRows | None = None,
    ) -> StepOutput | None:
        """Run a step of single tokens by a graph; None if there is none for it.

        Args:
          tokens, vectors: as in `run`; vectors are None if reads_tokens, and all tokens are at
            their places.
          plain: of the rows of `tokens`; the numbers by which next tokens may be chosen.

        Returns:
          as `run`; or the next tokens
        """

    def run(
        self,
        vectors: Tensor,
        inputs: StepInputs,
        tokens: Sequence[int],
        positions: Tensor,
        deepstack: Tensor | None = None,
    ) -> Tensor:
        """Run one step.

        Args:
          vectors: (num_tokens, hidden_size), of the step's tokens, or from the stage
            before
          tokens: the flat tokens whose logits are wanted.
          positions: (1, num_tokens), places in the sequence; (3, 1, num_tokens) if images
            are placed in a plane
          deepstack: (num_layers, num_tokens, hidden_size), added behind the first layers

        Returns:
          (len(tokens), vocab_size) logits; (num_tokens, hidden_size) hidden states if the
          model's last layer is elsewhere
        """


class OnKernels(Protocol):
    """The layers of a model on the kernels.

    Attributes:
      name: of the kernels, as in ModelInfo.
      description: the name and what they run on, for the log.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...


class DecoderOnKernels(OnKernels, Protocol):
    """The layers of a decoder, with packed weights."""

    def round_inputs(self) -> None:
        """Round the inputs of products to FP8 from now on, where weights say so.

        A difference in a last bit changes other inputs in the next layer, and so on, until two
        right decoders differ by all that rounding changes. So they are compared before.
        """

    def open(
        self,
        tables: SlotTables,
        *,
        num_blocks: int,
        num_window_blocks: int | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> LayersOnKernels:
        """Allocate a KV cache, and return the layers with it.

        Args:
          tables: the blocks of each slot.
          num_blocks, num_window_blocks, kv_dtype: as in PagedModel.
        """

    def make_scans(self) -> Scans:
        """Make the scans of the logits."""
