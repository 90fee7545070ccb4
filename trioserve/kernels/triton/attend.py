"""Attention over paged keys and values, in tiles of queries.

    tile     | token | token | ...       neighbours in one sequence, at most TILE_QUERIES
    program  = (tile, head of keys, split of the keys)

A program has the queries of one tile, of all heads that share a head of keys, so each key is
read once for all of them. It goes over the keys from the first that a query sees to the last,
TILE_KEYS at a time, and keeps a running softmax. Tiles of one token (decodes) are too few to
fill a GPU, so their keys are divided into splits; a second kernel puts the splits together.
Keys that all queries of a tile see come first, in a loop without masks.
A cache of int8 has a scale for each head of a token's keys, and one for each of its values: they
multiply scores and weights, so that products read int8 numbers as they are.

Source: Dao 2023 (FlashAttention-2), for the running softmax; Dao et al. 2023 (Flash-Decoding),
for the splits; Kwon et al. 2023 (PagedAttention), for the blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import IS_INTERPRETED, follow, let_next_begin, may_follow, wait

# Columns of the tensor of tiles.
TILE_BEGIN = tl.constexpr(0)
TILE_COUNT = tl.constexpr(1)
TILE_SLOT = tl.constexpr(2)
TILE_POSITION = tl.constexpr(3)
TILE_COLUMNS = tl.constexpr(4)

# Powers of two are faster than powers of e.
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)

# Of int8, whose range shall be symmetric.
LARGEST = tl.constexpr(127.0)
# The quotient of both must not overflow.
SMALLEST_PEAK = tl.constexpr(1e-30)
# 1.5 * 2**23
WHOLE = tl.constexpr(12582912.0)


@may_follow
@triton.jit
def write_cache(
    key,
    value,
    cache,
    key_scales,
    value_scales,
    tables,
    slots,
    positions,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    slot_stride,
    NUM_KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
):
    """Store the keys and values of one token; the grid is (tokens,).

    Numbers that are not finite become 0: see LayerCache.write.

    Args:
      key, value: (num_tokens, NUM_KV_HEADS, dim), any strides but the last
      cache, key_scales, value_scales, tables: as in `attend`.
      slots, positions: (num_tokens,) int64
      HEADS_WIDTH: NUM_KV_HEADS, rounded up to a power of two.
    """
    follow()
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    slot = tl.load(slots + token)
    # The padding of a graph has no slot.
    if slot < 0:
        return
    block = tl.load(tables + slot * slot_stride + position // BLOCK_SIZE)
    place = block * BLOCK_SIZE + position % BLOCK_SIZE
    heads = tl.arange(0, HEADS_WIDTH)[:, None]
    targets = cache + (place * NUM_KV_HEADS + heads) * (KEY_DIM + VALUE_DIM)
    scaled = (block * NUM_KV_HEADS + heads) * BLOCK_SIZE + position % BLOCK_SIZE

    columns = tl.arange(0, KEY_WIDTH)[None, :]
    inside = (heads < NUM_KV_HEADS) & (columns < KEY_DIM)
    source = key + token * key_token_stride + heads * key_head_stride + columns
    numbers = keep_finite(tl.load(source, mask=inside, other=0.0))
    if HAS_SCALES:
        peaks = find_peaks(numbers)
        tl.store(key_scales + scaled, find_scales(peaks), mask=heads < NUM_KV_HEADS)
        numbers = quantise(numbers, peaks)
    tl.store(targets + columns, numbers, mask=inside)

    # Latents have no values beside their keys.
    if VALUE_DIM > 0:
        columns = tl.arange(0, VALUE_WIDTH)[None, :]
        inside = (heads < NUM_KV_HEADS) & (columns < VALUE_DIM)
        source = value + token * value_token_stride + heads * value_head_stride
        numbers = keep_finite(tl.load(source + columns, mask=inside, other=0.0))
        if HAS_SCALES:
            peaks = find_peaks(numbers)
            target_scales = value_scales + scaled
            tl.store(target_scales, find_scales(peaks), mask=heads < NUM_KV_HEADS)
            numbers = quantise(numbers, peaks)
        tl.store(targets + KEY_DIM + columns, numbers, mask=inside)


@triton.jit
def keep_finite(numbers):
    # Triton's interpreter computes nothing in bfloat16.
    wide = numbers.to(tl.float32)
    # NaN is less than nothing.
    return tl.where(tl.abs(wide) < float("inf"), wide, 0.0).to(numbers.dtype)


@triton.jit
def find_peaks(numbers):
    """Return the largest magnitudes of heads, (heads, 1) float32.

    Args:
      numbers: (heads, dim), finite
    """
    return tl.max(tl.abs(numbers.to(tl.float32)), 1)[:, None]


@triton.jit
def find_scales(peaks):
    """Return the scales of heads whose numbers become int8."""
    # Exact quotients, as in attention/kv_cache.py: Triton's usual ones are not.
    return tl.div_rn(peaks, LARGEST)


@triton.jit
def quantise(numbers, peaks):
    """Return int8 numbers, whose products with the scales are nearest to the given ones."""
    inverses = LARGEST * tl.div_rn(1.0, tl.maximum(peaks, SMALLEST_PEAK))
    wide = numbers.to(tl.float32) * inverses
    # A float32 of this size has no fraction: halves go to the even neighbour.
    return ((wide + WHOLE) - WHOLE).to(tl.int8)


@triton.jit
def multiply(one, other):
    """Multiply two matrices, with sums in float32; the second may be int8."""
    if IS_INTERPRETED:
        # The interpreter would multiply the bits of bfloat16 numbers.
        one, other = one.to(tl.float32), other.to(tl.float32)
    # ieee: float32 would otherwise be multiplied as TF32, with 10 bits.
    return tl.dot(one, other.to(one.dtype), input_precision="ieee")


@triton.jit
def multiply_and_add(one, other, summed):
    """Add the product of two matrices to a third one, float32; the second may be int8."""
    if IS_INTERPRETED:
        one, other = one.to(tl.float32), other.to(tl.float32)
    return tl.dot(one, other.to(one.dtype), summed, input_precision="ieee")


@triton.jit
def attend_to_keys(
    peak,
    total,
    summed,
    queries,
    query_positions,
    query_ends,
    start,
    there,
    cache,
    key_scales,
    value_scales,
    table,
    kv_head,
    scaling,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Add TILE_KEYS keys to the running softmax of a tile, and return it.

    Args:
      peak, total: (rows,) float32, the largest score so far and the sum of the weights
      summed: (rows, VALUE_WIDTH) float32, the weighted sum of the values
      queries: (rows, KEY_WIDTH)
      query_positions: (rows,)
      query_ends: (rows,), the ends of the keys that they see
      start: the position of the first key in the sequence
      there: keys count whose positions are less.
      cache, key_scales, value_scales: as in `attend`.
      table: (max_blocks,) int64, blocks of the slot
      IS_ALIGNED: the keys begin where a block does, or lie in one.
      IS_MASKED: some row may not see some key, or rows of the cache are narrower than the
        widths.
    """
    key_columns, value_columns = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    each = tl.arange(0, TILE_KEYS)
    places = start + each
    if IS_ALIGNED:
        # The same parts of blocks in all rounds of a loop, so few numbers are left to compute.
        own_blocks = start // BLOCK_SIZE + each // BLOCK_SIZE
        offsets = each % BLOCK_SIZE
        if BLOCK_SIZE > TILE_KEYS:
            offsets += start % BLOCK_SIZE
    else:
        own_blocks, offsets = places // BLOCK_SIZE, places % BLOCK_SIZE
    if IS_MASKED:
        is_key = places < there
        blocks = tl.load(table + own_blocks, mask=is_key, other=0)
    else:
        blocks = tl.load(table + own_blocks)
    KEPT_DIM: tl.constexpr = KEY_DIM + VALUE_DIM
    tokens = cache + blocks * (BLOCK_SIZE * NUM_KV_HEADS * KEPT_DIM)
    within = (offsets * NUM_KV_HEADS + kv_head) * KEPT_DIM
    scaled = (blocks * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + offsets
    # (KEY_WIDTH, keys)
    source = tokens[None, :] + (within[None, :] + key_columns[:, None])
    if IS_MASKED:
        inside = is_key[None, :] & (key_columns < KEY_DIM)[:, None]
        keys = tl.load(source, mask=inside, other=0.0)
    else:
        keys = tl.load(source)
    scores = multiply(queries, keys)
    if HAS_SCALES:
        if IS_MASKED:
            scales = tl.load(key_scales + scaled, mask=is_key, other=0.0)
        else:
            scales = tl.load(key_scales + scaled)
        scores *= scales[None, :]
    factor = scaling * LOG2_E
    if HAS_SOFTCAP:
        # tanh(x) = 2 * sigmoid(2x) - 1
        scores = 2 * tl.sigmoid(scores * (2 * scaling / softcap)) - 1
        factor = softcap * LOG2_E
    if IS_MASKED:
        is_seen = is_key[None, :] & (places[None, :] < query_ends[:, None])
        if WINDOW:
            is_seen &= places[None, :] > query_positions[:, None] - WINDOW
        scores = tl.where(is_seen, scores, float("-inf"))
    # The factor is positive, so that the largest score is that of the largest product.
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    base = new_peak
    if IS_MASKED:
        # A row that has seen no key yet: -inf minus itself would be NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(tl.fma(scores, factor, -base[:, None]))
    fading = tl.exp2(peak - base)
    source = tokens[:, None] + (within[:, None] + KEY_DIM + value_columns[None, :])
    if IS_MASKED:
        inside = is_key[:, None] & (value_columns < VALUE_DIM)[None, :]
        values = tl.load(source, mask=inside, other=0.0)
    else:
        values = tl.load(source)  # (keys, VALUE_WIDTH)
    total = total * fading + tl.sum(weights, 1)
    if HAS_SCALES:
        if IS_MASKED:
            scales = tl.load(value_scales + scaled, mask=is_key, other=0.0)
        else:
            scales = tl.load(value_scales + scaled)
        # Float16 keeps few bits of numbers as small as scales, so `attend` divides the sum.
        weights *= scales[None, :] * LARGEST
    return (
        new_peak,
        total,
        multiply_and_add(weights.to(queries.dtype), values, summed * fading[:, None]),
    )


@triton.jit
def find_keys(position, count, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return the first key that a tile sees, and the end of them, if each token sees its own."""
    first = 0
    if WINDOW:
        # With the rest of a block, which a step holds as long as any key of it is seen.
        first = tl.maximum(position - WINDOW + 1, 0) // BLOCK_SIZE * BLOCK_SIZE
    return first, tl.where(count > 0, position + count, first)


@triton.jit
def find_length(num_keys, NUM_SPLITS: tl.constexpr, TILE_KEYS: tl.constexpr):
    """Return how many keys a split has, a multiple of TILE_KEYS."""
    return tl.cdiv(tl.cdiv(num_keys, NUM_SPLITS), TILE_KEYS) * TILE_KEYS


@may_follow
@triton.jit
def attend(
    query,
    output,
    sums,
    peaks,
    cache,
    key_scales,
    value_scales,
    tables,
    tiles,
    sinks,
    key_ends,
    scaling,
    softcap,
    query_token_stride,
    query_head_stride,
    slot_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_KEY_ENDS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_CHUNK: tl.constexpr,
):
    """Attend from the queries of one tile to one split of the keys.

    The grid is (tiles, heads of keys, splits), or (heads of keys, tiles, 1) if IS_CHUNK.

    Args:
      query: (num_tokens, num_heads, KEY_DIM), any strides but the last
      output: one split: (num_tokens, num_heads, VALUE_DIM); several: what `merge` reads,
        (num_tiles, num_heads, NUM_SPLITS, VALUE_DIM) float32
      sums, peaks: (num_tiles, num_heads, NUM_SPLITS) float32, of several splits
      cache: (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, KEY_DIM + VALUE_DIM); int8 if HAS_SCALES
      key_scales, value_scales: (num_blocks, NUM_KV_HEADS, BLOCK_SIZE) float32, the factors of
        a head's numbers, if HAS_SCALES
      tables: (max_num_seqs, max_blocks) int64, blocks of each slot
      tiles: (num_tiles, TILE_COLUMNS) int32: first flat token, number of tokens (0 for a
        tile that is padding), slot, position of the first token
      sinks: (num_heads,)
      key_ends: (num_tokens,) int32, the ends of the keys that tokens see, if HAS_KEY_ENDS;
        without them, tokens see the keys up to their own
      softcap: of the scores, if HAS_SOFTCAP.
      GROUP: heads of queries for each head of keys.
      KEY_WIDTH, VALUE_WIDTH: the dims, rounded up to a power of two.
      WINDOW: largest number of keys that a query sees; 0 is all.
      TILE_ROWS: rows of the product: a row is one token and one head.
    """
    let_next_begin()
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_CHUNK:
        # The first tiles are the longest. They begin first in all heads, so that no head's run
        # alone in the end.
        tile, kv_head = kv_head, tile
    begin = tl.load(tiles + tile * TILE_COLUMNS + TILE_BEGIN).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + TILE_COUNT)
    slot = tl.load(tiles + tile * TILE_COLUMNS + TILE_SLOT).to(tl.int64)
    position = tl.load(tiles + tile * TILE_COLUMNS + TILE_POSITION)
    wait()

    rows = tl.arange(0, TILE_ROWS)
    row_tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    # Rows behind the last token of the tile, and the rest of a tile whose rows are not a
    # multiple of the group.
    is_row = row_tokens < count
    key_columns, value_columns = tl.arange(0, KEY_WIDTH), tl.arange(0, VALUE_WIDTH)
    is_key_column, is_value_column = key_columns < KEY_DIM, value_columns < VALUE_DIM
    queries = tl.load(
        query
        + (begin + row_tokens)[:, None] * query_token_stride
        + heads[:, None] * query_head_stride
        + key_columns[None, :],
        mask=is_row[:, None] & is_key_column[None, :],
        other=0.0,
    )  # (TILE_ROWS, KEY_WIDTH)
    query_positions = position + row_tokens
    query_ends = query_positions + 1

    # Keys [first, last) are seen by the tile, and [here, there) by this program.
    first, last = find_keys(position, count, WINDOW, BLOCK_SIZE)
    if HAS_KEY_ENDS:
        query_ends = tl.load(key_ends + begin + row_tokens, mask=is_row, other=0)
        last = tl.max(query_ends, 0)
    length = find_length(last - first, NUM_SPLITS, TILE_KEYS)
    here = first + split * length
    if NUM_SPLITS > 1:
        # `merge` reads no such part.
        if here >= last:
            return
    there = tl.minimum(here + length, last)
    IS_ALIGNED: tl.constexpr = TILE_KEYS % BLOCK_SIZE == 0 or (
        WINDOW == 0 and BLOCK_SIZE % TILE_KEYS == 0
    )

    # All rows see the keys of [seen, unseen): a window hides some before, and rows end behind.
    IS_ALWAYS_MASKED: tl.constexpr = KEY_DIM < KEY_WIDTH or VALUE_DIM < VALUE_WIDTH
    seen, unseen = here, here
    if not IS_ALWAYS_MASKED:
        if WINDOW:
            hidden = tl.maximum(position + count - WINDOW - here, 0)
            seen = tl.minimum(here + tl.cdiv(hidden, TILE_KEYS) * TILE_KEYS, there)
        num_seen = tl.maximum(tl.minimum(there, position + 1) - seen, 0)
        unseen = seen + num_seen // TILE_KEYS * TILE_KEYS

    # Scores are logarithms to the base 2.
    peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    summed = tl.zeros((TILE_ROWS, VALUE_WIDTH), tl.float32)
    for is_masked in tl.static_range(1 if IS_ALWAYS_MASKED else 0, 2):
        begin_keys, end_keys = seen, unseen
        if is_masked:
            # The keys before `seen` come first, in the same loop.
            begin_keys, end_keys = unseen - (seen - here), there
        for start in range(begin_keys, end_keys, TILE_KEYS):
            if is_masked and WINDOW:
                start -= tl.where(start < unseen, unseen - seen, 0)
            peak, total, summed = attend_to_keys(
                peak,
                total,
                summed,
                queries,
                query_positions,
                query_ends,
                start,
                there,
                cache,
                key_scales,
                value_scales,
                tables + slot * slot_stride,
                kv_head,
                scaling,
                softcap,
                NUM_KV_HEADS,
                KEY_DIM,
                VALUE_DIM,
                KEY_WIDTH,
                VALUE_WIDTH,
                BLOCK_SIZE,
                WINDOW,
                HAS_SOFTCAP,
                HAS_SCALES,
                TILE_KEYS,
                IS_ALIGNED,
                is_masked,
            )
    if HAS_SCALES:
        summed /= LARGEST

    num_heads = NUM_KV_HEADS * GROUP
    if NUM_SPLITS == 1:
        if HAS_SINKS:
            sink = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32)
            sink *= LOG2_E
            base = tl.maximum(peak, sink)
            fading = tl.exp2(peak - base)
            total = total * fading + tl.exp2(sink - base)
            summed = summed * fading[:, None]
        # Rows without a token have seen no key.
        total = tl.where(is_row, total, 1.0)
        target = output + (
            ((begin + row_tokens) * num_heads + heads)[:, None] * VALUE_DIM
            + value_columns[None, :]
        )
        numbers = (summed / total[:, None]).to(output.dtype.element_ty)
        tl.store(target, numbers, mask=is_row[:, None] & is_value_column[None, :])
    else:
        # A tile with several splits has one token, which is row 0 of each head.
        part = (tile.to(tl.int64) * num_heads + heads) * NUM_SPLITS + split
        is_row = is_row & (row_tokens == 0)
        tl.store(sums + part, total, mask=is_row)
        tl.store(peaks + part, peak * LN_2, mask=is_row)
        tl.store(
            output + part[:, None] * VALUE_DIM + value_columns[None, :],
            summed,
            mask=is_row[:, None] & is_value_column[None, :],
        )


@may_follow
@triton.jit
def merge(
    parts,
    sums,
    peaks,
    output,
    tiles,
    sinks,
    num_heads,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Put the splits of one token and one head together; the grid is (tiles, heads).

    Args:
      parts, sums, peaks: as `attend` writes them, for splits that have keys.
      output: (num_tokens, num_heads, VALUE_DIM)
      BLOCK_SIZE, WINDOW, NUM_SPLITS, TILE_KEYS: as in `attend`.
    """
    let_next_begin()
    tile, head = tl.program_id(0), tl.program_id(1)
    begin = tl.load(tiles + tile * TILE_COLUMNS + TILE_BEGIN).to(tl.int64)
    count = tl.load(tiles + tile * TILE_COLUMNS + TILE_COUNT)
    position = tl.load(tiles + tile * TILE_COLUMNS + TILE_POSITION)
    wait()
    first, last = find_keys(position, count, WINDOW, BLOCK_SIZE)
    numbers_of_splits = tl.arange(0, NUM_SPLITS)
    length = find_length(last - first, NUM_SPLITS, TILE_KEYS)
    is_split = numbers_of_splits * length < last - first
    splits = (tile.to(tl.int64) * num_heads + head) * NUM_SPLITS + numbers_of_splits
    columns = tl.arange(0, VALUE_WIDTH)
    # The count is 1, or 0 for a tile that is padding, whose numbers mean nothing.
    is_column = columns < count * VALUE_DIM
    peak = tl.load(peaks + splits, mask=is_split, other=float("-inf"))
    base = tl.max(peak, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        base = tl.maximum(base, sink)
    fading = tl.exp(peak - base)
    total = tl.sum(tl.load(sums + splits, mask=is_split, other=0.0) * fading, 0)
    if HAS_SINKS:
        total += tl.exp(sink - base)
    summed = tl.load(
        parts + splits[:, None] * VALUE_DIM + columns[None, :],
        mask=is_split[:, None] & is_column[None, :],
        other=0.0,
    )
    numbers = tl.sum(summed * fading[:, None], 0) / total
    tl.store(
        output + (begin * num_heads + head) * VALUE_DIM + columns,
        numbers.to(output.dtype.element_ty),
        mask=is_column,
    )
