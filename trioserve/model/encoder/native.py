"""The forward pass on the native kernels, for encoders of BERT's kind on a CPU.

The model's own modules make the vectors of the first layer. One module stands for all
layers, and sends the vectors through the kernels. Texts of any lengths lie one behind the
other, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...config import ModelConfig
from ...kernels.library import open_library
from ...types.pooling import PoolingInput
from ..attention.bridge import AttentionContext
from ..attention.probe import UnfitLayer, probe_layers
from ..attention.registered import IMPLEMENTATION
from ..device.torch_threads import torch_threads
from ..runtimes.choice import NotRecognised, OutputDiffers, try_kernels
from ..runtimes.native.encoder import NativeEncoder
from ..runtimes.recognise.encoder import EncoderParts, find_encoder_parts
from ..self_check.compare import find_difference
from .encoder import EncodedInputs
from .tokens import TokenRules, lay_flat, place_spans


class NativePass:
    """Runs a model whose layers are on the native kernels.

    Args:
      model: it loses its layers, which `parts` holds.
      layers: of the model.
      rules: the arguments that the model needs for each token.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        parts: EncoderParts,
        layers: NativeEncoder,
        rules: TokenRules,
    ) -> None:
        self._model: Any = model
        self._rules = rules
        self.name, self.description = layers.name, layers.description
        self._stand_in = _StandIn(layers)
        setattr(parts.owner, parts.name, nn.ModuleList([self._stand_in]))

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs:
        self._stand_in.inputs = inputs
        with torch_threads(1):
            states: Tensor = self._model(**lay_flat(inputs, self._rules))[0]
        return EncodedInputs(
            states=states[0], spans=place_spans(inputs, range(len(inputs)))
        )


class _StandIn(nn.Module):
    """Stands for all layers of a model."""

    def __init__(self, layers: NativeEncoder) -> None:
        super().__init__()
        self._layers = layers
        self.inputs: Sequence[PoolingInput] = ()

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Tensor:
        return self._layers.run(hidden[0], self.inputs)[None]


def find_native_pass(
    model: PreTrainedModel,
    rules: TokenRules,
    probes: Sequence[PoolingInput],
    states: Sequence[Tensor],
    config: ModelConfig,
) -> NativePass | None:
    """Put the layers of a model on the native kernels.

    Args:
      probes: some inputs.
      states: of each probe, as the modules compute them, (num_tokens, hidden_size)

    Returns:
      None if the model runs by its modules

    Raises:
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
      OutputDiffers: the model must be loaded again to run by its modules.
    """

    def make() -> NativePass:
        library = open_library()
        parts = _find_parts(model, rules, states[0].dtype)
        encoder = NativeEncoder(parts, library, torch.get_num_threads())
        forward = NativePass(model, parts, encoder, rules)
        _check(forward, probes, states)
        return forward

    return try_kernels(make, config)


def _find_parts(
    model: PreTrainedModel, rules: TokenRules, dtype: torch.dtype
) -> EncoderParts:
    """Find the parts of a model, which then makes no masks; otherwise it stays as it is.

    Raises:
      NotRecognised
    """
    if rules.device.type != "cpu":
        raise NotRecognised(f"they run on CPUs, not on {rules.device.type}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise NotRecognised(f"they have no {str(dtype).removeprefix('torch.')}")
    if not model._supports_attention_backend:
        raise NotRecognised("its attention is not transformers' interface")
    own = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        layers = probe_layers(model, AttentionContext(model))
        return find_encoder_parts(model, layers)
    except Exception as error:
        model.set_attn_implementation(own)
        if isinstance(error, NotRecognised):
            raise
        if isinstance(error, UnfitLayer):
            raise NotRecognised(str(error)) from None
        raise NotRecognised.hide(error) from error


def _check(
    forward: NativePass, probes: Sequence[PoolingInput], states: Sequence[Tensor]
) -> None:
    """Compare the states of inputs that run together with the states of each alone.

    Raises:
      OutputDiffers
    """
    found, expected = forward.encode(probes).states, torch.cat(list(states))
    if problem := find_difference(expected, found):
        raise OutputDiffers(problem)
