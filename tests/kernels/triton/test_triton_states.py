"""Triton's kernels of layers with states compute what transformers computes, however cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import math
from typing import NamedTuple

from hypothesis import given, settings, strategies as st
from interpreter import require_triton
import pytest
import torch
from torch import Tensor

from ..chance import make_numbers
from ..test_states import DELTA, EPSILON, KIMI, MAMBA2, SHORT_CONV, Layer, Row, Sizes

require_triton()

from trioserve.kernels.triton.states import Convolution, Recurrence  # noqa: E402
from trioserve.kernels.triton.tiles import (  # noqa: E402
    Spans,
    Tiles,
    list_rows,
    list_spans,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_TOKENS = 7

# Fewer values than one program has, and more of them; the interpreter takes a millisecond for a
# token of each.
sizes_by_chance = st.builds(
    Sizes,
    # Replaced by each kind.
    kind=st.just(DELTA),
    key_heads=st.integers(1, 2),
    group=st.integers(1, 2),
    key_dim=st.integers(1, 9),
    value_dim=st.integers(1, 10),
    num_taps=st.integers(2, 5),
)


class PlannedRow(NamedTuple):
    slot: int
    start: int
    num_tokens: int


class Runner:
    """A layer with the states of two slots, which held other texts before.

    Args:
      by_spans: rows with several tokens run by spans.
    """

    def __init__(
        self,
        layer: Layer,
        dtype: torch.dtype = torch.float32,
        *,
        by_spans: bool = False,
    ) -> None:
        self._by_spans = by_spans
        self._sizes = sizes = layer.sizes
        shape = 2, sizes.num_taps - 1, sizes.num_channels
        self._convolution = Convolution(
            layer.taps.to(DEVICE),
            None if layer.bias is None else layer.bias.to(DEVICE),
            torch.full(shape, math.nan, dtype=dtype, device=DEVICE),
        )
        if sizes.kind == SHORT_CONV:
            return
        is_delta = sizes.kind != MAMBA2
        self._widening = [each.to(DEVICE) for each in layer.widening]
        places = 2, sizes.value_heads, sizes.value_dim, sizes.key_dim
        self._recurrence = Recurrence(
            states=torch.full(places, math.nan, device=DEVICE),
            num_key_heads=sizes.key_heads,
            decay=layer.decay.to(DEVICE),
            decay_bias=layer.decay_bias.to(DEVICE),
            skip=None if is_delta else layer.skip.to(DEVICE),
            step_limits=(0.1, 2.0),
            norm=layer.norm.to(DEVICE) if layer.has_norm else None,
            num_norm_groups=sizes.value_heads if is_delta else sizes.key_heads,
            has_gate_behind=is_delta or layer.has_gate_behind,
            activation="sigmoid" if layer.widening else "silu",
            epsilon=EPSILON,
        )

    def run(self, x: Tensor, *rows: Row) -> list[Tensor]:
        """Run one step; returns the outputs of each row.

        Args:
          x: (2, num_tokens, numbers of a token), the texts of the slots
        """
        planned = [PlannedRow(row.slot, row.begin, row.end - row.begin) for row in rows]
        held = {row.slot for row in rows if row.is_held}
        listed = list_rows(planned, held)
        num_decodes = sum(row.num_tokens == 1 for row in planned)
        has_spans = self._by_spans and num_decodes < len(planned)
        nothing = torch.zeros((0, 4), dtype=torch.int32, device=DEVICE)
        tiles = Tiles(
            tables=nothing,
            slots=nothing,
            positions=nothing,
            # A row without tokens is padding, as graphs have it.
            decodes=nothing.new_zeros(num_decodes, 4),
            chunks=nothing,
            rows=_send(listed),
            spans=Spans(*map(_send, list_spans(listed))) if has_spans else None,
        )

        def join(texts: Tensor) -> Tensor:
            return torch.cat([texts[row.slot, row.begin : row.end] for row in rows])

        x = x.to(DEVICE)
        flat = join(x)
        if self._sizes.kind == SHORT_CONV:
            output = self._convolution.run(flat, tiles, is_gated=True)
        else:
            mixed = self._convolution.run(flat, tiles)
            wide = None
            if self._widening:
                # Of all texts, because the bits of PyTorch's products depend on their shapes.
                narrow = x.split(self._sizes.parts, dim=-1)[-2:]
                first, second = (
                    join(each @ matrix.T)
                    for each, matrix in zip(narrow, self._widening)
                )
                wide = first, second
            output = self._recurrence.run(mixed, flat, tiles, wide)
        return list(output.cpu().split([row.num_tokens for row in planned]))


def _send(numbers: Sequence[object]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32).to(DEVICE)


@pytest.mark.parametrize("kind", [DELTA, MAMBA2, SHORT_CONV, KIMI])
@settings(max_examples=3, derandomize=True)
@given(
    sizes=sizes_by_chance,
    cuts=st.sets(st.integers(1, NUM_TOKENS - 1), max_size=2),
    seed=st.integers(0, 99),
)
def test_a_layer_with_a_state_computes_its_formula_however_a_text_is_cut(
    kind: int, sizes: Sizes, cuts: set[int], seed: int
) -> None:
    check_cuts(replace(sizes, kind=kind), sorted(cuts), NUM_TOKENS, seed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(DELTA, key_heads=2, group=2, key_dim=128, value_dim=128, num_taps=4),
        Sizes(MAMBA2, key_heads=1, group=8, key_dim=128, value_dim=64, num_taps=4),
        Sizes(SHORT_CONV, key_heads=1, group=1, key_dim=1, value_dim=2048, num_taps=3),
        Sizes(KIMI, key_heads=4, group=1, key_dim=128, value_dim=128, num_taps=4),
    ],
)
def test_heads_of_real_models(sizes: Sizes) -> None:
    check_cuts(sizes, [1, 2, 34, 100], 200, seed=1)


def check_cuts(sizes: Sizes, cuts: list[int], num_tokens: int, seed: int) -> None:
    """Compare a text with its formula, and its bits in parts with its bits at once.

    Beside another text, and if the last token of a row comes again.
    """
    layer = Layer(sizes, seed, has_bias=seed % 2 == 1)
    x = make_numbers(seed + 9, 2, num_tokens, sum(sizes.parts))
    runner = Runner(layer)
    other, whole = runner.run(x, Row(0, 0, 2), Row(1, 0, num_tokens))
    for expected, actual in ((x[0, :2], other), (x[1], whole)):
        expected = layer.compute(expected)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    outputs = []
    for begin, end in zip([0, *cuts], [*cuts, num_tokens]):
        # A text that begins in the slot of another one.
        (held,) = runner.run(x, Row(1, begin, end, is_held=True))
        again, _ = runner.run(x, Row(1, end - 1, end), Row(0, 2, 4))
        assert torch.equal(held[-1:], again)
        outputs.append(held)
    assert torch.equal(torch.cat(outputs), whole)
