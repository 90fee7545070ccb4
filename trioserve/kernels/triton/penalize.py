"""Penalties of tokens that came before.

Source: Keskar et al. 2019 (CTRL), section 4.1 for the repetition penalty; OpenAI's API
reference for the other two.
"""

from __future__ import annotations

import triton
import triton.language as tl


# `rows` may lie behind `places` in one tensor, anywhere.
@triton.jit(do_not_specialize=["num_places"], do_not_specialize_on_alignment=["rows"])
def penalize(
    scores,
    places,
    rows,
    counts,
    seen,
    penalties,
    row_stride,
    num_places,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lower logits of one row, in place; the grid is (places, blocks).

    Args:
      scores: (num_rows, VOCABULARY) float32, rows row_stride apart
      places: (num_places,) int64, rows of scores
      rows: (num_places,) int64, their rows in counts and seen
      counts: (any, VOCABULARY) int32, of output tokens
      seen: (any, VOCABULARY) uint8, whether a token is in the prompt or the output
      penalties: (3, num_places) float32, for repetition, frequency and presence
    """
    place = tl.program_id(0)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < VOCABULARY
    repetition = tl.load(penalties + place)
    frequency = tl.load(penalties + num_places + place)
    presence = tl.load(penalties + 2 * num_places + place)
    source = tl.load(rows + place) * VOCABULARY + tokens
    count = tl.load(counts + source, mask=inside, other=0)
    is_seen = tl.load(seen + source, mask=inside, other=0) != 0
    target = scores + tl.load(places + place) * row_stride + tokens
    logits = tl.load(target, mask=inside, other=0.0)
    # Divided as torch divides.
    divided = tl.div_rn(logits, tl.zeros_like(logits) + repetition)
    repeated = tl.where(logits > 0, divided, logits * repetition)
    logits = tl.where(is_seen, repeated, logits)
    logits = logits - frequency * count.to(tl.float32)
    logits = logits - tl.where(count > 0, presence, 0.0)
    tl.store(target, logits, mask=inside)
