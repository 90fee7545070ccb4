"""Check that a model's modules compute on paged attention what they compute by themselves.

A model may count positions by itself, look for a mask that is not built here, or change
scores in an attention function of its own. Then it would run, and answer worse. So two short
prompts, one of them in two parts, are compared with one pass of transformers alone. If a model
reads images, some tokens are marked as those of an image, because its masks may join them. Windows
are longer than these prompts; attention/masks.py reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
import inspect
import logging
from typing import Any

import torch
from torch import Tensor

from ...types.ids import BlockId
from ...types.plan import StepPlan, StepRow
from ..attention.gather import GatherAttention
from ..attention.probe import UnfitLayer
from ..runtimes.loaded import LoadedModel
from ..runtimes.modules.layers import ModuleLayers
from ..self_check.compare import measure_distance
from ..self_check.steps import CHECKED_IMAGE, make_tables
from ..step.joined_images import JoinedImages
from ..step.layout import lay_out

logger = logging.getLogger(__name__)

_NUM_TOKENS = 12
# The second prompt is computed in two parts.
_CUT = 7
_BLOCK_SIZE = 8

# Largest distance of logits, as a part of their size. A mistake gives 1 or so.
_TOLERANCE = {torch.float32: 1e-2}
_TOLERANCE_OF_16_BITS = 0.4
# Rounding may choose other experts for a token. Then transformers' own ways of attention differ,
# too, and the distance may be so many times theirs.
_MARGIN = 2.0


@torch.inference_mode()
def check_modules(model: LoadedModel, attention: str | dict[str, str]) -> None:
    """Compare a model's modules on paged attention with transformers' own attention.

    Args:
      attention: the attention implementation that the model has, and will have.

    Raises:
      UnfitLayer: they compute different logits.
    """
    chance = torch.Generator().manual_seed(2)
    size = min(model.info.vocab_size, 1000)
    tokens = torch.randint(3, size, (2, _NUM_TOKENS), generator=chance)
    arguments = {"input_ids": tokens.to(model.device)}
    if "position_ids" in inspect.signature(model.model.forward).parameters:
        # As generate() does. Some models would begin at another number.
        arguments["position_ids"] = torch.arange(_NUM_TOKENS, device=model.device)[None]
    arguments |= _mark_image(model, tokens)

    def run_alone(own: str) -> Tensor:
        assert model.stateful is not None, "transformers has built its modules"
        with _own_attention(model.model, attention, own), model.stateful.record():
            logits: Tensor = model.model(**arguments, use_cache=False).logits
        return logits[:, _CUT:]

    expected = run_alone("eager")
    actual = _run_paged(model, tokens)
    distance = measure_distance(expected, actual)
    logger.debug("paged attention differs by %.2g from transformers' own", distance)
    tolerance = _TOLERANCE.get(model.dtype, _TOLERANCE_OF_16_BITS)
    # Not a number must not pass as a small distance.
    if not distance <= tolerance:
        with suppress(Exception):
            # Not every model has both.
            own_distance = measure_distance(expected, run_alone("sdpa"))
            tolerance = max(tolerance, _MARGIN * own_distance)
    if not distance <= tolerance:
        raise UnfitLayer(
            "in parts, and beside another text, it computes other numbers than alone"
        )


def _mark_image(model: LoadedModel, tokens: Tensor) -> dict[str, Tensor]:
    """Return the argument that marks CHECKED_IMAGE, if a model's masks may depend on it."""
    if model.vision is None or model.vision.has_grid_positions:
        return {}
    known = inspect.signature(model.model.forward).parameters.keys()
    kinds = torch.zeros_like(tokens)
    for begin, end in CHECKED_IMAGE:
        kinds[:, begin:end] = 1
    names = known & {"token_type_ids", "mm_token_type_ids"}
    return {name: kinds.to(model.device) for name in names}


@contextmanager
def _own_attention(
    model: Any, attention: str | dict[str, str], own: str
) -> Iterator[None]:
    """Let a model run by one of transformers' ways of attention inside the block."""
    model.set_attn_implementation(
        own if isinstance(attention, str) else {**attention, "text_config": own}
    )
    try:
        yield
    finally:
        model.set_attn_implementation(attention)


def _run_paged(model: LoadedModel, tokens: Tensor) -> Tensor:
    """Return the logits behind _CUT of both prompts, (2, _NUM_TOKENS - _CUT, vocab_size)."""
    tables = make_tables(tokens.tolist(), _BLOCK_SIZE, model.device)
    num_blocks = -(-_NUM_TOKENS // _BLOCK_SIZE)
    joins_images = model.info.joins_images
    images = JoinedImages.at(CHECKED_IMAGE, 2) if joins_images else None
    # transformers' own attention rounds no keys and values to eight bits.
    plain = replace(model, kv_dtype=None)
    layers = ModuleLayers(plain, tables, 2 * num_blocks, GatherAttention)

    def run(*rows: StepRow) -> Tensor:
        tables.append_blocks(rows)
        plan = StepPlan(step_id=0, starts=(), rows=rows)
        inputs = lay_out(plan, tables, layers.order, model.device, images=images)
        arguments = {
            "input_ids": inputs.input_ids,
            "position_ids": inputs.position_ids,
        }
        wanted = range(inputs.input_ids.shape[1])
        return layers.begin(inputs).compute(arguments, wanted)

    def make_row(slot: int, start: int, end: int) -> StepRow:
        ids = [BlockId(slot * num_blocks + i) for i in range(num_blocks)]
        return StepRow(
            slot=slot,
            start=start,
            num_tokens=end - start,
            new_block_ids=() if start else tuple(ids),
            sample=False,
        )

    first = run(make_row(1, 0, _CUT), make_row(0, 0, _NUM_TOKENS))
    second = run(make_row(1, _CUT, _NUM_TOKENS))
    return torch.stack((first[2 * _CUT :], second))
