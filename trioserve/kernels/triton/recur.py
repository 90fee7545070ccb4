"""The recurrences of heads that keep a state, and the norm with gates behind them.

    delta rule    S <- decay * S;  S <- S + (rate * (v - S k)) k^T;  o = S q
    Mamba-2       S <- decay * S + (rate * v) k^T;                   o = S q + skip * v
    Kimi          the delta rule, with a decay for each column of S

A state is a matrix of VALUE_DIM rows and KEY_DIM columns. Tokens follow each other one by one,
and a program has the same shape for a chunk and for a decode. So a sequence gets the same
numbers however its tokens are spread over steps. The price is the time of a long prompt that
comes alone: a warp waits for the numbers of each token, and computes some 550 instructions for
it. In models of 16 bits, spans.py runs chunks but Kimi's.

Source: Yang et al. 2025 (Gated Delta Networks), equation 10; Dao and Gu 2024 (Mamba-2),
section 3; Kimi Team 2025 (Kimi Linear), equation 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activate import activate
from .convolve import read_row
from .follow import follow, may_follow
from .norm import normalize

# In the root of the length of a query or a key, as transformers has it.
LENGTH_EPSILON = tl.constexpr(1e-6)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)) with all its digits; x itself beyond 20, as PyTorch has it.

    Small steps decide how long a state lasts, so the last digits of 1 + exp(x) matter.

    Source: Kahan, as Goldberg 1991 (What every computer scientist should know about
    floating-point arithmetic), theorem 4, has it.
    """
    power = tl.exp(tl.minimum(x, 20.0))
    more = 1.0 + power
    is_small = more == 1.0
    rest = tl.where(is_small, 1.0, more - 1.0)
    return tl.where(
        x > 20.0, x, tl.where(is_small, power, tl.log(more) * (power / rest))
    )


@may_follow
@triton.jit
def recur(
    mixed,
    others,
    key_steps,
    states,
    rows,
    output,
    decay,
    decay_bias,
    skip,
    min_step,
    max_step,
    scale,
    others_stride,
    NUM_KEY_HEADS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    IS_DELTA: tl.constexpr,
    HAS_KEY_STEPS: tl.constexpr,
):
    """Run one row through some values of one head; the grid is (rows, heads, values).

    Args:
      mixed: (num_tokens, queries, keys, and values of all heads, one after the other),
        behind the convolution
      others: (num_tokens, others_stride), whose first numbers are the rates of all heads, if
        IS_DELTA, and their steps, unless HAS_KEY_STEPS
      key_steps: (num_tokens, NUM_HEADS, KEY_DIM), a step for each number of a key, if
        HAS_KEY_STEPS
      states: (num_places, NUM_HEADS, VALUE_DIM, KEY_DIM) float32
      rows: (num_rows, ROW_NUMBERS) int32
      output: (num_tokens, NUM_HEADS, VALUE_DIM)
      decay: (NUM_HEADS,) float32
      decay_bias: (NUM_HEADS,) float32, or (NUM_HEADS, KEY_DIM), if HAS_KEY_STEPS
      skip: (NUM_HEADS,) float32, unless IS_DELTA
      min_step, max_step: limits of steps, unless IS_DELTA.
      scale: of queries, if IS_DELTA.
      KEY_WIDTH: KEY_DIM, rounded up to a power of two.
      VALUES: of one program.
    """
    follow()
    begin, count, slot, position, num_kept = read_row(rows, tl.program_id(0))
    head = tl.program_id(1)
    num_keys: tl.constexpr = NUM_KEY_HEADS * KEY_DIM
    num_values: tl.constexpr = NUM_HEADS * VALUE_DIM
    keys = tl.arange(0, KEY_WIDTH)
    is_key = keys < KEY_DIM
    values = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    is_value = values < VALUE_DIM
    places = slot * num_values + head * VALUE_DIM + values
    places = states + places[:, None] * KEY_DIM + keys[None, :]
    inside = is_value[:, None] & is_key[None, :]
    # A sequence that begins has no state, whoever had its slot.
    is_old = is_value[:, None] & (keys < tl.where(position > 0, KEY_DIM, 0))[None, :]
    state = tl.load(places, mask=is_old, other=0.0)
    factor = tl.load(decay + head)
    if HAS_KEY_STEPS:
        bias = tl.load(decay_bias + head * KEY_DIM + keys, mask=is_key, other=0.0)
    else:
        bias = tl.load(decay_bias + head)
    skipped = 0.0 if IS_DELTA else tl.load(skip + head)
    key_place = head // (NUM_HEADS // NUM_KEY_HEADS) * KEY_DIM
    value_place = head * VALUE_DIM
    for t in range(count):
        source = mixed + (begin + t) * (2 * num_keys + num_values) + key_place
        query = tl.load(source + keys, mask=is_key, other=0.0).to(tl.float32)
        key = tl.load(source + num_keys + keys, mask=is_key, other=0.0).to(tl.float32)
        source += 2 * num_keys - key_place + value_place
        value = tl.load(source + values, mask=is_value, other=0.0).to(tl.float32)
        more = others + (begin + t) * others_stride + head
        if IS_DELTA:
            query *= tl.rsqrt(tl.sum(query * query, 0) + LENGTH_EPSILON) * scale
            key *= tl.rsqrt(tl.sum(key * key, 0) + LENGTH_EPSILON)
            rate = tl.sigmoid(tl.load(more).to(tl.float32))
            if HAS_KEY_STEPS:
                source = key_steps + ((begin + t) * NUM_HEADS + head) * KEY_DIM
                step = tl.load(source + keys, mask=is_key, other=0.0)
            else:
                step = tl.load(more + NUM_HEADS)
            step = softplus(step.to(tl.float32) + bias)
        else:
            step = softplus(tl.load(more).to(tl.float32) + bias)
            step = tl.minimum(tl.maximum(step, min_step), max_step)
            rate = step
        lasting = tl.exp(factor * step)
        # All three sums read the state before this token, so that none waits for another.
        asked = tl.sum(state * (lasting * query)[None, :], 1)
        match = tl.sum(key * query, 0)
        if IS_DELTA:
            added = (value - tl.sum(state * (lasting * key)[None, :], 1)) * rate
            result = asked + match * added
        else:
            added = value * rate
            result = asked + match * added + skipped * value
        if HAS_KEY_STEPS:
            lasting = lasting[None, :]
        state = lasting * state + added[:, None] * key[None, :]
        tl.store(
            output + (begin + t) * num_values + value_place + values,
            result.to(output.dtype.element_ty),
            mask=is_value,
        )
        if t + 1 == num_kept:
            tl.store(places, state, mask=inside)


@may_follow
@triton.jit
def weigh_and_normalize(
    numbers,
    gates,
    weight,
    output,
    epsilon,
    gates_stride,
    NUM_GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GATES_FIRST: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Normalise a group of a token's numbers, with gates; the grid is (tokens, NUM_GROUPS).

    Args:
      numbers, output: (num_tokens, NUM_GROUPS * SIZE)
      gates: (num_tokens, gates_stride), whose activation weighs the numbers
      weight: float32, of the norm, if HAS_NORM: (NUM_GROUPS * SIZE,), or (SIZE,) if all
        groups share it (IS_SHARED)
      WIDTH: SIZE, rounded up to a power of two.
      GATES_FIRST: the gates are before the norm.
      ACTIVATION: as in `activate`.
    """
    follow()
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, WIDTH)
    inside = columns < SIZE
    columns += group * SIZE
    place = token * NUM_GROUPS * SIZE + columns
    result = tl.load(numbers + place, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gates + token * gates_stride + columns, mask=inside, other=0.0)
    gate = activate(gate.to(tl.float32), ACTIVATION)
    if GATES_FIRST:
        result *= gate
    if HAS_NORM:
        factors = weight + columns - group * SIZE if IS_SHARED else weight + columns
        factors = tl.load(factors, mask=inside, other=0.0)
        result = normalize(result, factors, epsilon, SIZE)
    if not GATES_FIRST:
        result *= gate
    tl.store(output + place, result.to(output.dtype.element_ty), mask=inside)
