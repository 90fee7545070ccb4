"""The kernels of layers that keep a state, called with tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .convolve import convolve
from .recur import recur, weigh_and_normalize
from .spans import NUM_FACTORS, prepare_spans, run_spans
from .tiles import SPAN_TOKENS, Tiles
from .widths import MAX_SPAN_DIM, choose_span_size, round_side, round_up

# Tokens and channels of one program of `convolve`, for decodes and for chunks; and values of a
# program of `recur`, which is one warp, so that its sums need no shared memory. Usual choices,
# not measured on a GPU yet.
_DECODE_TILE = 1, 256
_CHUNK_TILE = 32, 64
_VALUES = 8

# Numbers of keys that `prepare_spans` reads at a time, so that it stays in registers; and reads
# of `run_spans` that are under way at once, as many as shared memory holds.
_KEY_PART = 32
_SPAN_STAGES = 2

# Numbers of `weigh_and_normalize` for each warp.
_WARP_NUMBERS = 256


@dataclass(frozen=True)
class Convolution:
    """A convolution, and the last inputs of all places.

    Args:
      taps: (num_taps, num_channels) float32, that of the newest input last
      bias: (num_channels,) float32; None if there is none
      kept: (num_places, num_taps - 1, num_channels), of the type of its inputs
    """

    taps: Tensor
    bias: Tensor | None
    kept: Tensor

    def run(self, inputs: Tensor, tiles: Tiles, *, is_gated: bool = False) -> Tensor:
        """Convolve the tokens of a step.

        Args:
          inputs: (num_tokens, numbers of a token), as `convolve` takes them

        Returns:
          (num_tokens, num_channels)
        """
        output = inputs.new_empty((len(inputs), self.taps.shape[1]))
        count = len(tiles.decodes)
        rows = tiles.rows
        assert rows is not None, "the model has states"
        for part, tile in ((rows[:count], _DECODE_TILE), (rows[count:], _CHUNK_TILE)):
            if len(part):
                self._launch(inputs, part, output, is_gated, *tile)
        return output

    def _launch(
        self,
        inputs: Tensor,
        rows: Tensor,
        output: Tensor,
        is_gated: bool,
        tokens: int,
        block: int,
    ) -> None:
        num_taps, num_channels = self.taps.shape
        convolve[len(rows), -(-num_channels // block)](
            inputs,
            self.taps,
            self.bias,
            self.kept,
            rows,
            output,
            inputs.stride(0),
            NUM_CHANNELS=num_channels,
            NUM_TAPS=num_taps,
            TAPS_WIDTH=round_up(num_taps - 1),
            IS_GATED=is_gated,
            HAS_BIAS=self.bias is not None,
            TOKENS=tokens,
            BLOCK=block,
        )


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """The recurrence of a layer's heads, and the states of all places.

    Args:
      states: (num_places, num_heads, value_dim, key_dim) float32
      num_key_heads: a head of keys serves as many heads as follow each other.
      decay: (num_heads,) float32, negative
      decay_bias: (num_heads,) float32, or (num_heads * key_dim,) if each number of a key has
        a decay of its own
      skip: (num_heads,) float32, of Mamba-2; None is the delta rule
      step_limits: the least and the largest step, of Mamba-2.
      norm: float32: (value_dim,), of each head, of the delta rule; (num_heads * value_dim,)
        of Mamba-2, or None without a norm
      num_norm_groups: parts of a token that are normalised by themselves.
      has_gate_behind: the gates are behind the norm.
      activation: of gates, as in `weigh_and_normalize`.
    """

    states: Tensor
    num_key_heads: int
    decay: Tensor
    decay_bias: Tensor
    skip: Tensor | None = None
    step_limits: tuple[float, float] = (0.0, 0.0)
    norm: Tensor | None
    num_norm_groups: int
    has_gate_behind: bool
    activation: str = "silu"
    epsilon: float

    def run(
        self,
        mixed: Tensor,
        inputs: Tensor,
        tiles: Tiles,
        wide: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run the tokens of a step through the states.

        Args:
          mixed: (num_tokens, num_channels), behind the convolution
          inputs: (num_tokens, numbers of a token): the channels before the convolution, the
            gates, and the others that `recur` takes
          wide: a step for each number of a key, contiguous, and the gates, which are not among
            the inputs then.

        Returns:
          (num_tokens, num_heads * value_dim)
        """
        rows = tiles.rows
        assert rows is not None, "the model has states"
        num_channels = mixed.shape[1]
        _, num_heads, value_dim, key_dim = self.states.shape
        gates = inputs[:, num_channels:]
        others = gates[:, num_heads * value_dim :]
        key_steps = None
        if wide is not None:
            others, (key_steps, gates) = gates, wide
        output = mixed.new_empty((len(mixed), num_heads * value_dim))
        has_spans = tiles.spans is not None and key_steps is None
        if has_spans and key_dim <= MAX_SPAN_DIM:
            self._run_spans(mixed, others, tiles, output)
            rows = rows[: len(tiles.decodes)]
        if len(rows):
            self._recur(mixed, others, key_steps, rows, output)
        self._weigh(output, gates)
        return output

    def _recur(
        self,
        mixed: Tensor,
        others: Tensor,
        key_steps: Tensor | None,
        rows: Tensor,
        output: Tensor,
    ) -> None:
        """Run rows token by token."""
        _, num_heads, value_dim, key_dim = self.states.shape
        recur[len(rows), num_heads, -(-value_dim // _VALUES)](
            mixed,
            others,
            key_steps,
            self.states,
            rows,
            output,
            self.decay,
            self.decay_bias,
            self.skip,
            *self.step_limits,
            key_dim**-0.5,
            others.stride(0),
            NUM_KEY_HEADS=self.num_key_heads,
            NUM_HEADS=num_heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            KEY_WIDTH=round_up(key_dim),
            VALUES=_VALUES,
            IS_DELTA=self.skip is None,
            HAS_KEY_STEPS=key_steps is not None,
            num_warps=1,
        )

    def _run_spans(
        self,
        mixed: Tensor,
        others: Tensor,
        tiles: Tiles,
        output: Tensor,
    ) -> None:
        """Run the rows behind the decodes, span by span."""
        rows, spans = tiles.rows, tiles.spans
        assert rows is not None and spans is not None, "there are chunks"
        _, num_heads, value_dim, key_dim = self.states.shape
        key_width, is_delta = round_side(key_dim), self.skip is None
        sizes = {
            "NUM_KEY_HEADS": self.num_key_heads,
            "NUM_HEADS": num_heads,
            "KEY_DIM": key_dim,
            "VALUE_DIM": value_dim,
            "KEY_WIDTH": key_width,
            "IS_DELTA": is_delta,
        }
        heads = len(spans.numbers), num_heads
        scores = mixed.new_empty((*heads, SPAN_TOKENS, SPAN_TOKENS))
        inverses = torch.empty_like(scores) if is_delta else None
        squares = torch.empty_like(scores, dtype=torch.float32) if is_delta else None
        factors = self.decay.new_empty((*heads, NUM_FACTORS, SPAN_TOKENS))
        lasting = self.decay.new_empty(heads)
        prepare_spans[heads](
            mixed,
            others,
            rows,
            spans.numbers,
            *(scores, inverses, squares, factors, lasting),
            self.decay,
            self.decay_bias,
            *self.step_limits,
            key_dim**-0.5,
            others.stride(0),
            **sizes,
            PART=min(_KEY_PART, key_width),
            num_warps=4,
            # Reads that are under way at once would not see what is written on the way.
            num_stages=1,
        )
        size = choose_span_size(key_width, value_dim)
        run_spans[len(spans.firsts), num_heads, -(-value_dim // size.values)](
            mixed,
            self.states,
            rows[len(tiles.decodes) :],
            spans.firsts,
            *(scores, inverses, factors, lasting),
            output,
            self.skip,
            **sizes,
            VALUES=size.values,
            num_warps=size.warps,
            num_stages=_SPAN_STAGES,
        )

    def _weigh(self, numbers: Tensor, gates: Tensor) -> None:
        """Weigh numbers by gates, and normalise them, in place."""
        num_tokens, size = len(numbers), numbers.shape[1] // self.num_norm_groups
        width = round_up(size)
        weigh_and_normalize[num_tokens, self.num_norm_groups](
            numbers,
            gates,
            self.norm,
            numbers,
            self.epsilon,
            gates.stride(0),
            NUM_GROUPS=self.num_norm_groups,
            SIZE=size,
            WIDTH=width,
            GATES_FIRST=not self.has_gate_behind,
            HAS_NORM=self.norm is not None,
            IS_SHARED=self.skip is None,
            ACTIVATION=self.activation,
            num_warps=min(8, max(1, width // _WARP_NUMBERS)),
        )
