"""Gates: the middle of a feed-forward network, and the end of some attention."""

from __future__ import annotations

import triton
import triton.language as tl

from .follow import follow, may_follow


@triton.jit
def activate(gate, ACTIVATION: tl.constexpr):
    """Return the activation of numbers, float32.

    Args:
      ACTIVATION: a name in ACTIVATION_CODES of recognise/formulas.py, or "sigmoid".
    """
    if ACTIVATION == "silu":
        gate = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu_tanh":
        # tanh(x) = 2 * sigmoid(2x) - 1, so that 0.5 * (1 + tanh(x)) = sigmoid(2x).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(inner)
    elif ACTIVATION == "gelu":
        gate = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476))
    elif ACTIVATION == "sigmoid":
        gate = tl.sigmoid(gate)
    else:
        gate = tl.maximum(gate, 0.0)
        if ACTIVATION == "relu2":
            gate = gate * gate
    return gate


@may_follow
@triton.jit
def weigh(
    gates,
    numbers,
    output,
    gates_stride,
    numbers_stride,
    scale,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_NUMBERS: tl.constexpr,
):
    """Multiply numbers by their activated gates; the grid is (tokens, blocks).

    Args:
      gates, numbers: (num_tokens, SIZE), whose tokens are a stride apart; the gates alone
        without HAS_NUMBERS
      output: (num_tokens, SIZE)
      scale: factor of gates before the activation.
      ACTIVATION: as in `activate`.
    """
    follow()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(gates + row * gates_stride + columns, mask=inside, other=0.0)
    gate = activate(scale * gate.to(tl.float32), ACTIVATION)
    if HAS_NUMBERS:
        numbers += row * numbers_stride
        gate *= tl.load(numbers + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        output + row * SIZE + columns,
        gate.to(output.dtype.element_ty),
        mask=inside,
    )
