"""The recurrences of recur.py for chunks of prompts: products of the tokens of a span.

    positions of a sequence | 0 ........ 63 | 64 ...... 127 | 128 ..... 191 | ...
    a row of a step                  | .................... |
    its spans                        |   5  |      64       | 2 |

A span has up to 64 tokens of one row, between two multiples of 64 of the sequence's positions.
With G_i the sum of the logarithms of the decays of its tokens up to i, and D_ij = exp(G_i - G_j),
which is 0 for j > i, the tokens of a span go through a state S (KEY_DIM, VALUE_DIM) at once:

    A_ij = rate_i * (k_i . k_j) * D_ij, for j < i
    X = (I + A)^-1 (rate * (V - exp(G) * (K S)))         of the delta rule
    X = rate * V                                         of Mamba-2
    O = exp(G) * (Q S) + ((Q K^T) * D) X
    S <- exp(G_last) * S + (exp(G_last - G) * K)^T X

`prepare_spans` computes what no state is needed for, of all spans side by side, and `run_spans`
goes from span to span. Factors of tokens are float32, beside products whose inputs have the type
of the model.

Source: Yang et al. 2025 (Gated Delta Networks), section 3.3; Dao and Gu 2024 (Mamba-2), section 6.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .convolve import read_row
from .recur import LENGTH_EPSILON, softplus
from .tiles import SPAN_TOKENS

_SPAN = tl.constexpr(SPAN_TOKENS)

# Tokens of a block, the smallest side of a product on tensor cores.
_BLOCK = tl.constexpr(16)
_NUM_BLOCKS = tl.constexpr(SPAN_TOKENS // 16)

# Numbers of each token that `prepare_spans` leaves for `run_spans`.
NUM_FACTORS = 3
_NUM_FACTORS = tl.constexpr(NUM_FACTORS)


@triton.jit
def sum_squares(vectors):
    """Return the sums of the squares of vectors, (n,) float32."""
    vectors = vectors.to(tl.float32)
    return tl.sum(vectors * vectors, 1)


@triton.jit
def invert(square):
    """Replace A by the inverse of I + A, if A has numbers below the diagonal only.

    Blocks on the diagonal are inverted column by column, because powers of A have large numbers
    if the keys of tokens are alike, and the inverse has none. The rows behind them follow, with
    R = rows of the inverse, D = a block on the diagonal:

        R_i = [-D_i^-1 A_i R_0..i-1 | D_i^-1 | 0]

    Args:
      square: A, (_SPAN, _SPAN) float32
    """
    within, across = tl.arange(0, _BLOCK), tl.arange(0, _SPAN)
    block = square + within[:, None] * _SPAN + within[None, :]
    blocks = tl.arange(0, _NUM_BLOCKS)[:, None, None] * (_BLOCK * (_SPAN + 1))
    tl.debug_barrier()
    below = tl.load(block[None, :, :] + blocks)
    rows, columns = within[None, :, None], within[None, None, :]
    inverse = tl.where(rows == columns, 1.0, 0.0) + tl.zeros_like(below)
    for i in range(_BLOCK - 1):
        column = tl.sum(tl.where(columns == i, below, 0.0), 2)
        row = tl.sum(tl.where(rows == i, inverse, 0.0), 1)
        inverse -= column[:, :, None] * row[:, None, :]
    # All threads have read before one of them writes.
    tl.debug_barrier()
    tl.store(block[None, :, :] + blocks, inverse)
    whole = square + across[:, None] * _SPAN + across[None, :]
    for i in range(1, _NUM_BLOCKS):
        tl.debug_barrier()
        first = i * _BLOCK
        target = square + (first + within)[:, None] * _SPAN + across[None, :]
        is_before = across < first
        ours = tl.load(target, mask=is_before[None, :], other=0.0)
        former = tl.load(whole, mask=is_before[:, None], other=0.0)
        corner = tl.load(block + i * (_BLOCK * (_SPAN + 1)))
        ours = tl.dot(ours, former, input_precision="tf32x3")
        ours = -tl.dot(corner, ours, input_precision="tf32x3")
        tl.debug_barrier()
        tl.store(target, ours, mask=is_before[None, :])
    tl.debug_barrier()


@triton.jit(do_not_specialize_on_alignment=["spans"])
def prepare_spans(
    mixed,
    others,
    rows,
    spans,
    scores,
    inverses,
    squares,
    factors,
    lasting,
    decay,
    decay_bias,
    min_step,
    max_step,
    scale,
    others_stride,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    IS_DELTA: tl.constexpr,
    PART: tl.constexpr,
):
    """Prepare one span of one head; the grid is (spans, heads).

    Args:
      mixed, others, rows, decay, decay_bias, min_step, max_step, scale: as in `recur`
      spans: (num_spans, 2) int32, the row of each span and its place there
      scores: (num_spans, NUM_HEADS, _SPAN, _SPAN), of the type of `mixed`: what each token reads
        of what others add
      inverses: the same, if IS_DELTA: what they add of what they miss in the state
      squares: the same, float32; room to invert
      factors: (num_spans, NUM_HEADS, NUM_FACTORS, _SPAN) float32, of each token: of the numbers
        that its key reads from the state and that its query reads, and that its key writes
      lasting: (num_spans, NUM_HEADS) float32, what the state is multiplied by
      KEY_WIDTH: KEY_DIM, rounded up to a side of a product.
      PART: numbers of keys that are read at a time.
    """
    span, head = tl.program_id(0), tl.program_id(1)
    begin, count, slot, position, num_kept = read_row(rows, tl.load(spans + 2 * span))
    num_keys: tl.constexpr = NUM_KEY_HEADS * KEY_DIM
    num_numbers: tl.constexpr = 2 * num_keys + NUM_HEADS * VALUE_DIM
    place = span.to(tl.int64) * NUM_HEADS + head
    within = tl.arange(0, _SPAN)
    tokens = tl.load(spans + 2 * span + 1) * _SPAN - position % _SPAN + within
    is_token = (tokens >= 0) & (tokens < count)
    more = others + (begin + tokens) * others_stride + head
    first = tl.load(more, mask=is_token, other=0.0).to(tl.float32)
    bias = tl.load(decay_bias + head)
    if IS_DELTA:
        rate = tl.sigmoid(first)
        step = tl.load(more + NUM_HEADS, mask=is_token, other=0.0).to(tl.float32)
        step = softplus(step + bias)
    else:
        rate = tl.minimum(tl.maximum(softplus(first + bias), min_step), max_step)
        step = rate
    logs = tl.where(is_token, tl.load(decay + head) * step, 0.0)
    sums = tl.cumsum(logs, 0)
    # The last token of a row may come again.
    kept = tl.sum(tl.where(tokens < num_kept, logs, 0.0), 0)
    source = mixed + (begin + tokens[:, None]) * num_numbers
    source += head // (NUM_HEADS // NUM_KEY_HEADS) * KEY_DIM
    score = tl.zeros((_SPAN, _SPAN), tl.float32)
    match = score
    asking = tl.full((_SPAN,), LENGTH_EPSILON if IS_DELTA else 1.0, tl.float32)
    length = asking
    for part in range(0, KEY_WIDTH, PART):
        columns = part + tl.arange(0, PART)[None, :]
        is_number = is_token[:, None] & (columns < KEY_DIM)
        query = tl.load(source + columns, mask=is_number, other=0.0)
        key = tl.load(source + num_keys + columns, mask=is_number, other=0.0)
        score = tl.dot(query, tl.trans(key), score, input_precision="ieee")
        if IS_DELTA:
            match = tl.dot(key, tl.trans(key), match, input_precision="ieee")
            asking += sum_squares(query)
            length += sum_squares(key)
    if IS_DELTA:
        asking = tl.rsqrt(asking) * scale
        length = tl.rsqrt(length)
    target = factors + place * (_NUM_FACTORS * _SPAN) + within
    tl.store(target, tl.exp(sums) * length)
    tl.store(target + _SPAN, tl.exp(sums) * asking)
    # Masked before exp, because other sums may be too large for it.
    writing = tl.exp(tl.where(tokens < num_kept, kept - sums, float("-inf"))) * length
    tl.store(target + 2 * _SPAN, writing if IS_DELTA else writing * rate)
    tl.store(lasting + place, tl.exp(kept))
    place *= _SPAN * _SPAN
    square = place + within[:, None] * _SPAN + within[None, :]
    is_seen = within[:, None] >= within[None, :]
    ratio = tl.exp(tl.where(is_seen, sums[:, None] - sums[None, :], float("-inf")))
    ratio *= length[None, :]
    score *= ratio * asking[:, None]
    if not IS_DELTA:
        score *= rate[None, :]
    tl.store(scores + square, score.to(scores.dtype.element_ty))
    if IS_DELTA:
        match *= ratio * (rate * length)[:, None]
        match = tl.where(within[:, None] > within[None, :], match, 0.0)
        tl.store(squares + square, match)
        invert(squares + place)
        inverse = tl.load(squares + square) * rate[None, :]
        tl.store(inverses + square, inverse.to(inverses.dtype.element_ty))


@triton.jit(do_not_specialize_on_alignment=["rows", "firsts"])
def run_spans(
    mixed,
    states,
    rows,
    firsts,
    scores,
    inverses,
    factors,
    lasting,
    output,
    skip,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    IS_DELTA: tl.constexpr,
):
    """Run one row through some values of one head; the grid is (rows, heads, values).

    Args:
      mixed, states, output, skip: as in `recur`
      rows: (num_rows, ROW_NUMBERS) int32, with several tokens each
      firsts: (num_rows,) int32, the first span of each row
      scores, inverses, factors, lasting: as `prepare_spans` writes them
      KEY_WIDTH: KEY_DIM, rounded up to a side of a product.
      VALUES: of one program.
    """
    begin, count, slot, position, num_kept = read_row(rows, tl.program_id(0))
    head = tl.program_id(1)
    num_keys: tl.constexpr = NUM_KEY_HEADS * KEY_DIM
    num_values: tl.constexpr = NUM_HEADS * VALUE_DIM
    num_numbers: tl.constexpr = 2 * num_keys + num_values
    dtype: tl.constexpr = mixed.dtype.element_ty
    columns = tl.arange(0, KEY_WIDTH)
    is_key = columns < KEY_DIM
    values = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    is_value = values < VALUE_DIM
    places = slot * num_values + head * VALUE_DIM + values
    places = states + places[None, :] * KEY_DIM + columns[:, None]
    inside = is_value[None, :] & is_key[:, None]
    # A sequence that begins has no state, whoever had its slot.
    is_old = is_value[None, :] & (columns < tl.where(position > 0, KEY_DIM, 0))[:, None]
    state = tl.load(places, mask=is_old, other=0.0)
    skipped = 0.0 if IS_DELTA else tl.load(skip + head)
    within = tl.arange(0, _SPAN)
    square = within[:, None] * _SPAN + within[None, :]
    sources = mixed + begin * num_numbers
    sources += head // (NUM_HEADS // NUM_KEY_HEADS) * KEY_DIM + columns[None, :]
    value_sources = mixed + begin * num_numbers + 2 * num_keys + head * VALUE_DIM
    targets = output + begin * num_values + head * VALUE_DIM + values[None, :]
    place = tl.load(firsts + tl.program_id(0)).to(tl.int64) * NUM_HEADS + head
    for first in range(-(position % _SPAN), count, _SPAN):
        tokens = (first + within)[:, None].to(tl.int64)
        is_token = (tokens >= 0) & (tokens < count)
        source = sources + tokens * num_numbers
        is_number = is_token & is_key[None, :]
        query = tl.load(source, mask=is_number, other=0.0)
        key = tl.load(source + num_keys, mask=is_number, other=0.0)
        source = value_sources + tokens * num_numbers + values[None, :]
        value = tl.load(source, mask=is_token & is_value[None, :], other=0.0)
        score = tl.load(scores + place * (_SPAN * _SPAN) + square)
        source = factors + place * (_NUM_FACTORS * _SPAN) + within
        asking = tl.load(source + _SPAN)[:, None]
        writing = tl.load(source + 2 * _SPAN)[:, None]
        before = state.to(dtype)
        result = tl.dot(query, before, input_precision="ieee") * asking
        if IS_DELTA:
            inverse = tl.load(inverses + place * (_SPAN * _SPAN) + square)
            read = tl.dot(key, before, input_precision="ieee")
            missed = value.to(tl.float32) - tl.load(source)[:, None] * read
            added = tl.dot(inverse, missed.to(dtype), input_precision="ieee")
        else:
            added = value.to(tl.float32)
            result += skipped * added
        result = tl.dot(score, added.to(dtype), result, input_precision="ieee")
        state *= tl.load(lasting + place)
        added = (added * writing).to(dtype)
        state = tl.dot(tl.trans(key), added, state, input_precision="ieee")
        tl.store(
            targets + tokens * num_values,
            result.to(output.dtype.element_ty),
            mask=is_token & is_value[None, :],
        )
        place += NUM_HEADS
    tl.store(places, state, mask=inside)
