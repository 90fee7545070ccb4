"""The middle of a gated feed-forward network."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weigh(
    gate_up,
    output,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Multiply numbers by their activated gates; the grid is (tokens, blocks).

    Args:
      gate_up: (num_tokens, 2 * SIZE), the gates, and then the numbers
      output: (num_tokens, SIZE)
      ACTIVATION: a name in ACTIVATION_CODES of recognise/formulas.py.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    source = gate_up + row * 2 * SIZE + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu_tanh":
        # tanh(x) = 2 * sigmoid(2x) - 1, so that 0.5 * (1 + tanh(x)) = sigmoid(2x).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(inner)
    elif ACTIVATION == "gelu":
        gate = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476))
    else:
        gate = tl.maximum(gate, 0.0)
    numbers = tl.load(source + SIZE, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        output + row * SIZE + columns,
        (gate * numbers).to(output.dtype.element_ty),
        mask=inside,
    )
