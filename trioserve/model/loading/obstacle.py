"""Can the kernels run a model? Told by its configuration alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...kernels.library import NoKernels, open_library
from ..attention.bridge import AttentionContext
from ..attention.latents import LatentProjection
from ..runtimes.choice import NotRecognised
from ..runtimes.fused.checks import check_parts
from ..runtimes.native.packer import NUMBERS
from ..runtimes.recognise.decoder import find_parts
from .adapt.latents import keep_latents
from .files.facts import ModelFacts
from .gguf.tensors import make_buffers
from .outline import build_on_meta
from .watching import WatchedModel

# Beyond the original lengths behind which models scale queries. Angles of a million take memory.
_MAX_POSITIONS = 65_536


def find_obstacle(
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
