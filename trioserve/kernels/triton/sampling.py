"""The sampler's kernels, called with tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import draw as kernels
from .choose_plain import scan_part, take_best
from .penalize import penalize
from .widths import round_up

# Tokens of one program, and tokens that bisection reads at once. Usual choices, not
# measured on a GPU yet.
_PART = 4096
_BLOCK = 1024
_WARPS = 8

# Tokens within 1, 2, 4 ... 64 of the likeliest, and all.
_LEVELS = 8

# The weights of more tokens might not fit into 63 bits.
MAX_VOCABULARY = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where the tokens of a captured step go.

    Attributes:
      places: (num_rows,) int32, of each row's token among the chosen; below 0 for rows
        without a token
      slots: (num_rows,) int64
      last_tokens: (num_slots,) int64
    """

    places: Tensor
    slots: Tensor
    last_tokens: Tensor


def choose_tokens(
    scores: Tensor, settings: Tensor, *, has_cut: bool, kept: Kept | None = None
) -> Tensor:
    """Choose the next token of each row.

    Args:
      scores: (num_rows, vocab_size) of any float type, the logits before the temperature;
        the numbers of a row are neighbours
      settings: (num_rows, num_settings) float64, the numbers that draw.py names; greedy for
        rows without a token
      has_cut: whether a row's way is CUT.
      kept: where tokens go; by default to their rows' places.

    Returns:
      (num_rows,) int64
    """
    num_rows, vocab_size = scores.shape
    part = min(_PART, round_up(vocab_size))
    num_parts = -(-vocab_size // part)
    levels = _LEVELS if has_cut else 1
    peaks, raced = (
        scores.new_empty((num_rows, num_parts), dtype=torch.float32) for _ in range(2)
    )
    best = scores.new_empty((num_rows, num_parts), dtype=torch.int32)
    # Tensors of their own begin at places for which the kernels are compiled once.
    counts, sums = (
        scores.new_empty((num_rows, levels, num_parts), dtype=torch.int64)
        for _ in range(2)
    )
    chosen = scores.new_empty(num_rows, dtype=torch.int64)
    limits = kernels.find_limits(settings)
    stride = scores.stride(0)
    parts = {"PART": part, "NUM_PARTS": num_parts, "WIDTH": round_up(num_parts)}
    sizes = {"VOCABULARY": vocab_size, **parts, "LEVELS": levels, "num_warps": _WARPS}
    grid = num_rows, num_parts
    given = scores, settings, limits, peaks
    places = best if kept is None else kept.places
    kernels.find_peaks[grid](
        *(scores, places, peaks, best, stride),
        VOCABULARY=vocab_size,
        PART=part,
        HAS_PLACES=kept is not None,
        num_warps=_WARPS,
    )
    kernels.sum_levels[grid](*given, best, raced, counts, sums, stride, **sizes)
    # Only rows with a cut read these two.
    keys = listed = best
    if has_cut:
        keys, listed = (
            scores.new_empty((num_rows, vocab_size), dtype=torch.int32)
            for _ in range(2)
        )
        kernels.list_tokens[grid](*given, counts, sums, keys, listed, stride, **sizes)
    kernels.draw[num_rows,](
        *(settings, places),
        # Nobody reads these two without places.
        best if kept is None else kept.slots,
        chosen if kept is None else kept.last_tokens,
        *(peaks, best, raced, counts, sums, keys, listed, chosen),
        VOCABULARY=vocab_size,
        NUM_PARTS=num_parts,
        WIDTH=parts["WIDTH"],
        LEVELS=levels,
        BLOCK=min(_BLOCK, part),
        HAS_PLACES=kept is not None,
        num_warps=_WARPS,
    )
    return chosen


def choose_plain(
    logits: Tensor, temperatures: Tensor, keys: Tensor, kept: Kept | None = None
) -> Tensor:
    """Choose the next token of each row by its temperature alone.

    Args:
      logits: (num_rows, vocab_size) of any float type; the numbers of a row are neighbours
      temperatures: (num_rows,) float32; 0 takes the likeliest token
      keys: (num_rows,) int64, of the noise; greedy rows have any
      kept: where tokens go; by default to their rows' places.

    Returns:
      (num_rows,) int64
    """
    num_rows, vocab_size = logits.shape
    part = min(_PART, round_up(vocab_size))
    num_parts = -(-vocab_size // part)
    peaks = logits.new_empty((num_rows, num_parts), dtype=torch.float32)
    best = logits.new_empty((num_rows, num_parts), dtype=torch.int32)
    chosen = logits.new_empty(num_rows, dtype=torch.int64)
    places = best if kept is None else kept.places
    scan_part[num_rows, num_parts](
        *(logits, temperatures, keys, places, peaks, best, logits.stride(0)),
        VOCABULARY=vocab_size,
        PART=part,
        HAS_PLACES=kept is not None,
        num_warps=_WARPS,
    )
    take_best[num_rows,](
        *(peaks, best, places),
        # Nobody reads these two without places.
        best if kept is None else kept.slots,
        chosen if kept is None else kept.last_tokens,
        chosen,
        VOCABULARY=vocab_size,
        NUM_PARTS=num_parts,
        WIDTH=round_up(num_parts),
        HAS_PLACES=kept is not None,
        num_warps=1,
    )
    return chosen


def lower_repeated(
    scores: Tensor,
    places: Tensor,
    rows: Tensor,
    counts: Tensor,
    seen: Tensor,
    penalties: Tensor,
) -> None:
    """Lower the logits of tokens that came before, in place.

    Args:
      scores: (num_rows, vocab_size) float32; the numbers of a row are neighbours
      places: (num_places,) int64, rows of scores
      rows: (num_places,) int64, their rows in counts and seen
      counts: (any, vocab_size) int32, of output tokens
      seen: (any, vocab_size) bool, tokens of the prompt or the output
      penalties: (3, num_places) float32, for repetition, frequency and presence
    """
    vocab_size = scores.shape[1]
    block = min(_BLOCK, round_up(vocab_size))
    penalize[len(places), -(-vocab_size // block)](
        scores,
        places,
        rows,
        counts,
        seen.view(torch.uint8),
        penalties,
        scores.stride(0),
        len(places),
        VOCABULARY=vocab_size,
        BLOCK=block,
        # A fused product would be rounded once, and torch's twice.
        enable_fp_fusion=False,
    )
