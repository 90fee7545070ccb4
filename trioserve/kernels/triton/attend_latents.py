"""Attention over paged latents, in tiles of queries.

    row of the cache | latent, LATENT_DIM | shared key, SHARED_DIM |
    keys             | all of it                                   |
    values           | the latent         |

    program = (tile, part of the heads, split of the keys)

All heads share the one head of keys, and its values are the first numbers of the keys. So a
program has some heads of the tokens of its tile, and reads each latent once: the same numbers
are multiplied with queries and with weights. All else is as in attend.py, whose `merge` puts
splits together.

Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.2; model/attention/latents.py has the
formula.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attend import (
    LARGEST,
    LN_2,
    LOG2_E,
    TILE_BEGIN,
    TILE_COLUMNS,
    TILE_COUNT,
    TILE_POSITION,
    TILE_SLOT,
    find_keys,
    find_length,
    multiply,
    multiply_and_add,
)
from .follow import follow, may_follow


@triton.jit
def attend_to_rows(
    peak,
    total,
    summed,
    latent_queries,
    shared_queries,
    query_positions,
    places,
    there,
    cache,
    scales,
    table,
    scaling,
    LATENT_DIM: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    SHARED_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Add the rows of the cache at some places to the running softmax of a tile.

    Args:
      peak, total: (rows,) float32, the largest score so far and the sum of the weights
      summed: (rows, LATENT_WIDTH) float32, the weighted sum of the latents
      latent_queries, shared_queries: (rows, LATENT_WIDTH) and (rows, SHARED_WIDTH)
      query_positions: (rows,)
      scales: as in `attend_latents`.
      places: (keys,), positions of the keys in the sequence, less than `there` if they count
      table: (max_blocks,) int64, blocks of the slot
      IS_MASKED: some row may not see some key, or the parts of a row are narrower than the
        widths.
    """
    latent_columns = tl.arange(0, LATENT_WIDTH)[None, :]
    shared_columns = tl.arange(0, SHARED_WIDTH)[None, :]
    if IS_MASKED:
        is_key = places < there
        blocks = tl.load(table + places // BLOCK_SIZE, mask=is_key, other=0)
    else:
        blocks = tl.load(table + places // BLOCK_SIZE)
    held = blocks * BLOCK_SIZE + places % BLOCK_SIZE
    tokens = cache + held * (LATENT_DIM + SHARED_DIM)
    source = tokens[:, None] + latent_columns  # (keys, LATENT_WIDTH)
    shared_source = tokens[:, None] + LATENT_DIM + shared_columns
    if IS_MASKED:
        inside = is_key[:, None] & (latent_columns < LATENT_DIM)
        latents = tl.load(source, mask=inside, other=0.0)
        inside = is_key[:, None] & (shared_columns < SHARED_DIM)
        shared = tl.load(shared_source, mask=inside, other=0.0)
    else:
        latents = tl.load(source)
        shared = tl.load(shared_source)
    # Two products read latents. If each converted int8, float32 would not fit into registers.
    latents = latents.to(latent_queries.dtype)
    scores = multiply(shared_queries, tl.trans(shared))
    scores = multiply_and_add(latent_queries, tl.trans(latents), scores)
    if HAS_SCALES:
        if IS_MASKED:
            factors = tl.load(scales + held, mask=is_key, other=0.0)
        else:
            factors = tl.load(scales + held)
        scores *= factors[None, :]
    scores *= scaling * LOG2_E
    if IS_MASKED:
        seen = is_key[None, :] & (places[None, :] <= query_positions[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    base = new_peak
    if IS_MASKED:
        # A row that has seen no key yet: -inf minus itself would be NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - base[:, None])
    fading = tl.exp2(peak - base)
    total = total * fading + tl.sum(weights, 1)
    if HAS_SCALES:
        # As in attend.py.
        weights *= factors[None, :] * LARGEST
    weights = weights.to(latent_queries.dtype)
    return (
        new_peak,
        total,
        multiply_and_add(weights, latents, summed * fading[:, None]),
    )


@may_follow
@triton.jit
def attend_latents(
    query,
    output,
    sums,
    peaks,
    cache,
    scales,
    tables,
    tiles,
    scaling,
    query_token_stride,
    query_head_stride,
    slot_stride,
    NUM_HEADS: tl.constexpr,
    PART_HEADS: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    SHARED_DIM: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    SHARED_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_CHUNK: tl.constexpr,
):
    """Attend from some heads of one tile to one split of the keys.

    The grid is (tiles, parts of the heads, splits), or (parts, tiles, 1) if IS_CHUNK.

    Args:
      query: (num_tokens, NUM_HEADS, LATENT_DIM + SHARED_DIM), any strides but the last
      output: one split: (num_tokens, NUM_HEADS, LATENT_DIM); several: what `merge` reads,
        (num_tiles, NUM_HEADS, NUM_SPLITS, LATENT_DIM) float32
      sums, peaks: (num_tiles, NUM_HEADS, NUM_SPLITS) float32, of several splits
      cache: (num_blocks, BLOCK_SIZE, 1, LATENT_DIM + SHARED_DIM); int8 if HAS_SCALES
      scales: (num_blocks, 1, BLOCK_SIZE) float32, the factors of rows, if HAS_SCALES
      tables, tiles: as in `attend`.
      PART_HEADS: heads of one program.
      LATENT_WIDTH, SHARED_WIDTH: the dims, rounded up to a power of two.
      TILE_ROWS: rows of the product: a row is one token and one head.
    """
    follow()
    tile, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_CHUNK:
        # As in `attend`.
        tile, part = part, tile
    begin = tl.load(tiles + tile * TILE_COLUMNS + TILE_BEGIN).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + TILE_COUNT)
    slot = tl.load(tiles + tile * TILE_COLUMNS + TILE_SLOT).to(tl.int64)
    position = tl.load(tiles + tile * TILE_COLUMNS + TILE_POSITION)

    rows = tl.arange(0, TILE_ROWS)
    row_tokens, heads = rows // PART_HEADS, part * PART_HEADS + rows % PART_HEADS
    is_row = (row_tokens < count) & (heads < NUM_HEADS)
    latent_columns = tl.arange(0, LATENT_WIDTH)[None, :]
    shared_columns = tl.arange(0, SHARED_WIDTH)[None, :]
    is_number = is_row[:, None] & (latent_columns < LATENT_DIM)
    source = query + (
        (begin + row_tokens) * query_token_stride + heads * query_head_stride
    )
    latent_queries = tl.load(
        source[:, None] + latent_columns, mask=is_number, other=0.0
    )
    shared_queries = tl.load(
        source[:, None] + LATENT_DIM + shared_columns,
        mask=is_row[:, None] & (shared_columns < SHARED_DIM),
        other=0.0,
    )

    # Keys [0, last) are seen by the tile, and [here, there) by this program.
    _, last = find_keys(position, count, 0, BLOCK_SIZE)
    length = find_length(last, NUM_SPLITS, TILE_KEYS)
    here = split * length
    there = tl.minimum(here + length, last)

    # All rows see the keys before `masked`.
    IS_ALWAYS_MASKED: tl.constexpr = (
        LATENT_DIM < LATENT_WIDTH or SHARED_DIM < SHARED_WIDTH
    )
    masked = here
    if not IS_ALWAYS_MASKED:
        num_seen = tl.maximum(tl.minimum(there, position + 1) - here, 0)
        masked = here + num_seen // TILE_KEYS * TILE_KEYS

    # Scores are logarithms to the base 2.
    peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    summed = tl.zeros((TILE_ROWS, LATENT_WIDTH), tl.float32)
    for is_masked in tl.static_range(1 if IS_ALWAYS_MASKED else 0, 2):
        begin_keys, end_keys = here, masked
        if is_masked:
            begin_keys, end_keys = masked, there
        for start in range(begin_keys, end_keys, TILE_KEYS):
            peak, total, summed = attend_to_rows(
                peak,
                total,
                summed,
                latent_queries,
                shared_queries,
                position + row_tokens,
                start + tl.arange(0, TILE_KEYS),
                there,
                cache,
                scales,
                tables + slot * slot_stride,
                scaling,
                LATENT_DIM,
                SHARED_DIM,
                LATENT_WIDTH,
                SHARED_WIDTH,
                BLOCK_SIZE,
                HAS_SCALES,
                is_masked,
            )
    if HAS_SCALES:
        summed /= LARGEST

    if NUM_SPLITS == 1:
        # Rows without a token have seen no key.
        summed /= tl.where(is_row, total, 1.0)[:, None]
        target = (begin + row_tokens) * NUM_HEADS + heads
    else:
        # A tile with several splits has one token, so a row is a head.
        target = (tile.to(tl.int64) * NUM_HEADS + heads) * NUM_SPLITS + split
        tl.store(sums + target, total, mask=is_row)
        tl.store(peaks + target, peak * LN_2, mask=is_row)
    tl.store(
        output + target[:, None] * LATENT_DIM + latent_columns,
        summed.to(output.dtype.element_ty),
        mask=is_number,
    )
