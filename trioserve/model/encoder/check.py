"""Find the fastest correct way to run a model, by trying.

transformers has hundreds of text models, and no list of their peculiarities is complete.
So a few short inputs are run one at a time, which is always correct. A faster way is
taken if it gives the same states.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...config import ModelConfig
from ...errors import UnsupportedModel, shorten_message
from ...types.pooling import PoolingInput
from ..attention.bridge import AttentionContext
from ..attention.choose import choose_encoder_backend
from ..attention.probe import probe_layers
from ..attention.registered import IMPLEMENTATION
from ..loading.files.architecture import check_windows
from ..runtimes.modules.packing import fuse_activations, pack_products
from ..self_check.compare import agree
from .encoder import ForwardPass
from .flat import FlatPass
from .native import find_native_pass
from .rectangles import RectanglePass
from .tokens import TokenRules

logger = logging.getLogger(__name__)

_LENGTHS = (3, 5, 9)

# Longer windows are not tried, because reading more tokens takes larger models seconds.
# They are assumed to work as everywhere in transformers.
_MAX_TRIED_WINDOW = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of trying a model.

    Args:
      forward: the fastest correct way to run it.
      is_causal: its tokens see no later tokens.
      states: for each probe, (num_tokens, hidden_size) run by itself
      kernels: the code of its layers, as in ModelInfo.
    """

    forward: ForwardPass
    kernels: str
    is_causal: bool
    states: tuple[Tensor, ...]


def make_probes(
    model: PreTrainedModel, rules: TokenRules, num_positions: int | None
) -> tuple[PoolingInput, ...]:
    """Return inputs of different lengths; each begins with the tokens of the one before.

    The last one is longer than the model's windows, and a pair if the model takes pairs.
    """
    longest = max(_LENGTHS[-1], _find_window(model) + 4)
    lengths = [min(n, num_positions or n) for n in (*_LENGTHS[:-1], longest)]
    special = {rules.fill_id, rules.padding_id}
    vocabulary = [i for i in range(count_vocabulary(model)) if i not in special]
    # Steps of a prime number visit the whole vocabulary before any token comes twice.
    tokens = [vocabulary[7919 * (i + 1) % len(vocabulary)] for i in range(lengths[-1])]
    second_begin = 4 if rules.type_ids and lengths[-1] > 4 else 0
    return tuple(
        PoolingInput(
            token_ids=array("i", tokens[:length]),
            second_begin=second_begin if index == len(lengths) - 1 else 0,
        )
        for index, length in enumerate(lengths)
    )


@torch.inference_mode()
def examine(
    model: PreTrainedModel,
    rules: TokenRules,
    probes: Sequence[PoolingInput],
    architecture: str,
    config: ModelConfig | None,
) -> Findings:
    """Choose the way to run a model, and pack its products.

    Args:
      config: chooses the kernels; None tries no native ones.

    Raises:
      UnsupportedModel: it cannot read several inputs at once.
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
      OutputDiffers: the model must be loaded again, to run by its modules.
    """
    rectangles = RectanglePass(model, rules)
    try:
        states = tuple(rectangles.encode([probe]).states for probe in probes)
    except Exception as error:
        # Models miss different arguments, and raise different errors.
        raise UnsupportedModel(
            architecture, f"it cannot read tokens alone ({shorten_message(error)})"
        ) from error
    native = (
        None
        if config is None
        else find_native_pass(model, rules, probes, states, config)
    )
    forward: ForwardPass
    if native is None:
        forward = _choose_modules_pass(model, rules, probes, states, architecture)
        kernels = "torch"
    else:
        forward, kernels = native, native.name
    shorter, longer = states[0], states[-1]
    return Findings(
        forward=forward,
        kernels=kernels,
        is_causal=agree(shorter, longer[: len(shorter)]),
        states=states,
    )


def _choose_modules_pass(
    model: PreTrainedModel,
    rules: TokenRules,
    probes: Sequence[PoolingInput],
    states: Sequence[Tensor],
    architecture: str,
) -> ForwardPass:
    pack_products(model)
    fuse_activations(model)
    flat = _find_flat_pass(model, rules, probes, states)
    if flat is not None:
        return flat
    logger.info("%s is run in padded rectangles", architecture)
    rectangles = RectanglePass(model, rules)
    if not agree(torch.cat(list(states)), rectangles.run_together(probes)):
        raise UnsupportedModel(
            architecture,
            "its result for a text depends on the other texts of a batch",
        )
    return rectangles


def _find_flat_pass(
    model: PreTrainedModel,
    rules: TokenRules,
    probes: Sequence[PoolingInput],
    states: Sequence[Tensor],
) -> FlatPass | None:
    if not model._supports_attention_backend:
        return None
    own = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    context = AttentionContext(model)
    try:
        layers = probe_layers(model, context)
        check_windows(model.config, layers)
        backend = choose_encoder_backend(layers, rules.device)
        forward = FlatPass(model, context, backend, rules)
        encoded = forward.encode(probes)
        found = [encoded.states[begin:end] for begin, end in encoded.spans]
        if agree(torch.cat(list(states)), torch.cat(found)):
            return forward
    except Exception:
        # A model that was not written for such arguments may raise any error. It is run
        # in rectangles.
        logger.debug("attention cannot be replaced", exc_info=True)
    model.set_attn_implementation(own)
    return None


def _find_window(model: nn.Module) -> int:
    """Return the widest window to try; 0 if there is none."""
    windows = {
        getattr(module, "sliding_window", None) or 0 for module in model.modules()
    }
    return max((w for w in windows if w <= _MAX_TRIED_WINDOW), default=0)


def count_vocabulary(model: PreTrainedModel) -> int:
    """Return the number of tokens that a model has vectors for."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])
