"""Check that a stage computes the same as the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import shorten_message
from ..adapters.products import recording_products
from ..attention.bridge import AttentionCall
from ..attention.masks import probe_decoder
from ..attention.probe import LayerSpec, UnfitLayer
from ..states.spec import StateSpec
from .stage import LoadedStage

_NUM_TOKENS = 2


def probe_stage(
    stage: LoadedStage,
) -> tuple[tuple[LayerSpec, ...], tuple[StateSpec, ...], dict[str, tuple[int, int]]]:
    """Return the calls of attention and the states of a stage's layers, in order.

    Returns:
      both, and the shapes of the products that adapters may change

    Raises:
      UnfitLayer: the stage cannot run, or computes something else than in the whole
        model.
    """
    assert stage.stateful is not None, "its modules are looked at"
    try:
        with (
            stage.stateful.record() as recorder,
            recording_products(stage.model, _NUM_TOKENS) as products,
        ):
            layers = probe_decoder(
                stage.model,
                stage.attention,
                lambda tokens, positions: _run(stage, tokens, positions),
                has_others=stage.stateful.has_any,
            )
            _check_independence(stage)
    except UnfitLayer:
        raise
    except Exception as error:
        # The model's own code runs here without some of its modules.
        raise UnfitLayer(
            f"it needs more than its layers ({shorten_message(error)})"
        ) from error
    return layers, recorder.states, products


def _run(
    stage: LoadedStage,
    tokens: Tensor,
    positions: Tensor,
    embeds: Tensor | None = None,
) -> Tensor:
    """Run a stage; returns logits, or hidden states for the next stage.

    Args:
      embeds: arguments of a later stage in place of zeros.
    """
    read = {"input_ids": tokens}
    if not stage.partition.is_first:
        read = stage.enter(_draw(stage, stage.hidden_width))
    if embeds is not None:
        read["inputs_embeds"] = embeds
    read["position_ids"] = positions
    output = stage.compute(read, range(_NUM_TOKENS))
    if stage.partition.is_last:
        return output
    if output.shape != (_NUM_TOKENS, stage.hidden_width) or output.dtype != stage.dtype:
        raise UnfitLayer("its layers do not all give the same kind of hidden states")
    return output


def _draw(stage: LoadedStage, width: int) -> Tensor:
    """Return the same noise each time, (_NUM_TOKENS, width)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((_NUM_TOKENS, width), generator=generator)
    return noise.to(stage.device, stage.dtype)


def _check_independence(stage: LoadedStage) -> None:
    """Refuse models whose later layers use more than the output of the layers before.

    A later stage has no tokens. Its output must be the same with any numbers in their
    place.
    """
    if stage.partition.is_first:
        return
    tokens = torch.zeros((1, _NUM_TOKENS), dtype=torch.int64, device=stage.device)
    positions = torch.arange(_NUM_TOKENS, device=stage.device)[None]
    noise = _draw(stage, stage.embedding_width)[None]
    seen = []
    for embeds in (torch.zeros_like(noise), noise):
        listener = _Listener()
        with torch.inference_mode(), stage.attention.use(listener):
            output = _run(stage, tokens, positions, embeds)
        seen.append([*listener.heard, output])
    if not all(torch.equal(first, second) for first, second in zip(*seen)):
        raise UnfitLayer("its layers look at its tokens again")


class _Listener:
    """A StepAttention that records its arguments, and returns values."""

    def __init__(self) -> None:
        self.heard: list[Tensor] = []

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        self.heard += [query, key, value]
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
