"""A preview, by the configuration alone, of how a model would run here."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...config import ModelConfig
from ...kernels.library import NoKernels, open_library
from ...types.windows import WindowLayers
from ..attention.bridge import AttentionContext
from ..attention.cache_memory import choose_kv_dtype, count_kv_bytes
from ..attention.latents import LatentProjection
from ..attention.windows import find_windows
from ..runtimes.choice import NotRecognised, check_need
from ..runtimes.fused.weights import check_parts
from ..runtimes.native.packer import NUMBERS
from ..runtimes.recognise.decoder import find_parts
from ..states.spec import count_state_bytes
from .adapt.latents import keep_latents
from .files.facts import ModelFacts, read_facts
from .gguf.tensors import make_buffers
from .outline import build_on_meta, find_dtype, watch_outline
from .plain.llama import outline_plain
from .watching import WatchedModel

# Beyond the original lengths behind which models scale queries. Angles of a million take memory.
_MAX_POSITIONS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The way in which a model would run.

    Args:
      max_model_len: tokens of one sequence at most.
      dtype: of the weights; None if only the weights tell it.
      kv_bytes_per_token: bytes of keys and values of all layers, in float32 if only the
        weights tell the type; None if the model cannot run without weights.
      windows: the layers with windows among them, in the same way.
      state_bytes: bytes of states of a sequence in all layers, in the same way.
      no_kernels: the reason why its layers run by transformers' modules; None if they run on
        trioserve's kernels.
    """

    architecture: str
    max_model_len: int
    dtype: str | None
    kv_bytes_per_token: int | None
    windows: WindowLayers | None
    state_bytes: int | None
    no_kernels: str | None


def preview_model(folder: Path, config: ModelConfig) -> Preview:
    """Return how a model that generates text would run.

    Raises:
      UnsupportedModel, UnsupportedQuantization, WeightsBroken, InvalidConfig: the model
        would not run.
    """
    plain = outline_plain(folder, config)
    if plain is not None:
        described = json.loads((folder / "config.json").read_bytes())
        return Preview(
            architecture=described["architectures"][0],
            max_model_len=plain.max_model_len,
            dtype=str(described.get("dtype") or described["torch_dtype"]),
            kv_bytes_per_token=plain.kv_bytes_per_token,
            windows=None,
            state_bytes=0,
            no_kernels=None,
        )
    facts = read_facts(folder, config)
    watched = watch_outline(facts)
    dtype = find_dtype(facts, config)
    kv_dtype = choose_kv_dtype(config, dtype or torch.float32)
    obstacle = _find_obstacle(facts, watched, dtype or torch.float32)
    if not config.wants_native:
        obstacle = "the options say so"
    elif obstacle is not None:
        check_need(config, obstacle)
    return Preview(
        architecture=facts.architecture,
        max_model_len=facts.max_model_len,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        kv_bytes_per_token=(
            None if watched is None else count_kv_bytes(watched.layers, kv_dtype)
        ),
        windows=(None if watched is None else find_windows(watched.layers, kv_dtype)),
        state_bytes=(
            None
            if watched is None
            else count_state_bytes(watched.states, dtype or torch.float32)
        ),
        no_kernels=obstacle,
    )


def _find_obstacle(
    facts: ModelFacts, watched: WatchedModel | None, dtype: torch.dtype
) -> str | None:
    """Return why the kernels cannot run a model, as far as its configuration tells."""
    if watched is None:
        return "only its weights can tell"
    try:
        model = build_on_meta(facts, dtype)
        keep_latents(model)
        AttentionContext(model)
        _fill_small(model)
        parts = find_parts(
            model,
            watched.layers,
            min(facts.max_model_len, _MAX_POSITIONS),
            has_plane=facts.vision is not None and facts.vision.has_grid_positions,
        )
        if facts.device.type == "cpu":
            open_library()
            return None if dtype in NUMBERS else f"they have no {dtype}"
        check_parts(parts)
    except (NotRecognised, NoKernels) as error:
        return str(error)
    except Exception as error:
        return str(NotRecognised.hide(error))
    return None


def _fill_small(model: Any) -> None:
    """Give numbers to the parts of a model whose formulas are found by running them.

    Its products stay without memory. The vectors of tokens, and experts, get memory that
    nobody touches.
    """
    make_buffers(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() <= 1:
                numbers = torch.ones_like(parameter, device="cpu")
            elif isinstance(module, (nn.Linear, LatentProjection)):
                continue
            elif parameter.dim() == 2 and not isinstance(module, nn.Embedding):
                # A router of experts.
                numbers = torch.randn_like(parameter, device="cpu")
            else:
                numbers = torch.empty_like(parameter, device="cpu")
            setattr(module, name, nn.Parameter(numbers, requires_grad=False))
