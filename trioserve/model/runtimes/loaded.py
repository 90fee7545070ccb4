"""A model on its device, ready to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...types.model_info import ModelInfo
from ..attention.bridge import AttentionContext, StepAttention
from ..attention.probe import LayerSpec
from ..device.tensors import send_ids
from ..shards.cuts import Cut
from ..shards.group import TensorGroup
from ..states.modules import StatefulModules, StepStates
from ..states.spec import StateSpec
from .deepstack import Deepstack
from .on_kernels import DecoderOnKernels
from .vision import VisionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on its device, ready for a ModelRunner.

    It has all its layers; LoadedStage (stages/stage.py) has some of them.

    Only one runner at a time may step it, because its attention uses one cache.

    Args:
      model: transformers' model, in evaluation mode; of a plain Llama (plain/) only a
        module with the vectors of tokens.
      info: its description for other rooms.
      attention: the link from its modules to the attention of the present step.
      layers: its calls of attention, in order.
      takes_logits_to_keep: its forward pass can leave out unwanted logits.
      states: the states that its layers keep besides keys and values.
      stateful: the link from its modules with states to the states of the present step;
        None if no module has any.
      vision: its kind of vision; None if it reads text alone.
      deepstack: adds vectors of images behind its first layers; None if it has none.
      attention_backend: as in ModelConfig.
      kv_dtype: type of the numbers in its KV cache; None is that of the model.
      tensor_group: the processes that share its layers; None if they are whole.
      wants_native: whether the options let this project's kernels run.
      products: those of its modules that adapters may change; see LayerAdapters.
      cuts: of their weights, in which the outputs come first, if other processes have the
        rest.
      native: its layers on this project's kernels, which run it in place of the modules.
    """

    model: Any
    info: ModelInfo
    attention: AttentionContext
    layers: tuple[LayerSpec, ...]
    takes_logits_to_keep: bool
    states: tuple[StateSpec, ...] = ()
    stateful: StatefulModules | None = None
    vision: VisionKind | None = None
    deepstack: Deepstack | None = None
    attention_backend: str = "auto"
    kv_dtype: torch.dtype | None = None
    tensor_group: TensorGroup | None = None
    wants_native: bool = True
    # Mappings have no hash.
    products: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    cuts: Mapping[str, Cut] = field(default_factory=dict, hash=False)
    native: DecoderOnKernels | None = None

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def begin(self) -> int:
        """The place of its first layer among the whole model's."""
        return 0

    @property
    def end(self) -> int | None:
        """The place behind its last layer; None if that is the whole model's last."""
        return None

    @property
    def has_all_layers(self) -> bool:
        """True if no other stage has layers."""
        return True

    @property
    def has_head(self) -> bool:
        """True if it computes logits."""
        return True

    @contextmanager
    def using(
        self, attention: StepAttention, states: StepStates | None = None
    ) -> Iterator[None]:
        """Let the modules attend, and read and write states, inside the block."""
        with ExitStack() as stack:
            stack.enter_context(self.attention.use(attention))
            if self.stateful is not None and states is not None:
                stack.enter_context(self.stateful.use(states))
            yield

    def join_logits(self, output: Tensor) -> Tensor:
        """Join the outputs of the kernels of all processes that share the layers.

        Args:
          output: as LayersOnKernels.run returns it, for this process's part of the
            vocabulary.

        Returns:
          (len(tokens), vocab_size) logits; hidden states as they are
        """
        if self.tensor_group is None or not self.has_head:
            return output
        return self.tensor_group.join_logits(output, self.info.vocab_size)

    def enter(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the arguments, besides positions, with which its layers read vectors.

        Args:
          vectors: (num_tokens, width)
        """
        return {"inputs_embeds": vectors[None]}

    def compute(self, arguments: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
        """Run the model over one step; its attention is in use.

        Args:
          arguments: the model's arguments by name.
          tokens: the flat tokens whose logits are wanted.

        Returns:
          (len(tokens), vocab_size) logits
        """
        index = send_ids(tokens, self.device)
        wanted = {"logits_to_keep": index} if self.takes_logits_to_keep else {}
        output = self.model(**arguments, use_cache=False, **wanted)
        logits: Tensor = output.logits[0]
        return logits if self.takes_logits_to_keep else logits[index]
