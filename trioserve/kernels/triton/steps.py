"""The kernels between the products of a decoder, called with tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .activate import weigh
from .norm import add_and_normalize
from .paged import PagedLayer
from .rotate import rotate_and_write
from .tiles import Tiles
from .widths import round_side, round_up

# Numbers of one program of `weigh`; the usual choice. Not measured on a GPU yet.
_WEIGH_BLOCK = 1024

# Numbers of `add_and_normalize` that stay in the registers of four warps.
_NORM_WIDTH = 8192


def normalize(
    hidden: Tensor,
    weight: Tensor | None,
    epsilon: float,
    *,
    added: Tensor | None = None,
    added_weight: Tensor | None = None,
    scale: float = 1.0,
    output_scale: float = 1.0,
    is_first: bool = False,
) -> Tensor | None:
    """Add to hidden states, in place, and normalise the sums.

    Args:
      hidden, added: (num_tokens, size), contiguous
      weight: (size,) float32, of the norm; None normalises nothing
      added_weight: (size,) float32, of a norm of `added` before the sum
      scale: factor of `added`.
      output_scale: factor of the sums.
      is_first: it begins when all before it is done, so that the kernels behind it may read
        what a step has written for them before they wait (follow.py).

    Returns:
      (num_tokens, size), the normalised sums; None without a norm
    """
    num_tokens, size = hidden.shape
    output = None if weight is None else hidden.new_empty(hidden.shape)
    kernel = add_and_normalize.kernel if is_first else add_and_normalize
    kernel[num_tokens,](
        hidden,
        added,
        added_weight,
        weight,
        output,
        scale,
        output_scale,
        epsilon,
        SIZE=size,
        WIDTH=round_up(size),
        HAS_ADDED=added is not None,
        HAS_ADDED_NORM=added_weight is not None,
        HAS_OUTPUT=output is not None,
        num_warps=4 if size <= _NORM_WIDTH else 8,
    )
    return output


def weigh_gates(
    gates: Tensor, numbers: Tensor | None, activation: str, *, scale: float = 1.0
) -> Tensor:
    """Multiply numbers by their activated gates.

    Args:
      gates, numbers: (num_tokens, size); they may be parts of wider rows. None leaves the
        activated gates alone.
      activation: as in recognise/formulas.py, or "sigmoid".
      scale: factor of gates before the activation.

    Returns:
      (num_tokens, size)
    """
    num_tokens, size = gates.shape
    output = gates.new_empty((num_tokens, size))
    block = min(_WEIGH_BLOCK, round_up(size))
    weigh[num_tokens, -(-size // block)](
        gates,
        numbers,
        output,
        gates.stride(0),
        0 if numbers is None else numbers.stride(0),
        scale,
        SIZE=size,
        BLOCK=block,
        ACTIVATION=activation,
        HAS_NUMBERS=numbers is not None,
    )
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """The rotary angles of the tokens of a step.

    Attributes:
      cos, sin: (rows, rotary_dim) float32
      rows: (num_tokens,) int64, the row of each token
    """

    cos: Tensor
    sin: Tensor
    rows: Tensor


@dataclass(frozen=True)
class RotaryLayer:
    """The steps of one layer between its first product and its attention.

    Args:
      paged: its attention and cache.
      rotary_dim: numbers of a head that are rotated.
      query_norm, key_norm: (key_dim,) float32; both or none
      value_norm: (value_dim,) float32; None without it
      keys_are_values: values are keys before their norm.
    """

    paged: PagedLayer
    rotary_dim: int
    query_norm: Tensor | None
    key_norm: Tensor | None
    epsilon: float
    value_norm: Tensor | None = None
    keys_are_values: bool = False

    @cached_property
    def _sizes(self) -> dict[str, int | bool]:
        spec = self.paged.spec
        return {
            "NUM_HEADS": spec.num_heads,
            "NUM_KV_HEADS": spec.num_kv_heads,
            "HEADS_WIDTH": round_up(spec.num_heads),
            "KV_HEADS_WIDTH": round_up(spec.num_kv_heads),
            "KEY_DIM": spec.key_dim,
            "VALUE_DIM": spec.value_dim,
            "VALUE_WIDTH": round_side(spec.value_dim),
            "ROTARY": self.rotary_dim,
            "HALF_WIDTH": round_up(self.rotary_dim // 2),
            "REST_WIDTH": round_up(spec.key_dim - self.rotary_dim),
            "HAS_NORMS": self.query_norm is not None,
            "HAS_VALUE_NORM": self.value_norm is not None,
            "KEYS_ARE_VALUES": self.keys_are_values,
            "HAS_SCALES": self.paged.scales is not None,
            "BLOCK_SIZE": self.paged.cache.shape[1],
        }

    def run(self, qkv: Tensor, tiles: Tiles, angles: Angles) -> Tensor:
        """Rotate queries and keys, and write keys and values to the cache.

        Args:
          qkv: (num_tokens, heads of queries, keys and values, and perhaps more); of queries
            alone, if the layer reads another one's cache

        Returns:
          (num_tokens, num_heads, key_dim), the rotated queries
        """
        spec = self.paged.spec
        query = qkv.new_empty((len(qkv), spec.num_heads, spec.key_dim))
        table = tiles.get_table(self.paged.is_windowed)
        num_parts = 2 if spec.shares is None else 1
        rotate_and_write[len(qkv), num_parts](
            qkv,
            query,
            self.paged.cache,
            *self.paged.both_scales,
            table,
            tiles.slots,
            tiles.positions,
            angles.cos,
            angles.sin,
            angles.rows,
            self.query_norm,
            self.key_norm,
            self.value_norm,
            self.epsilon,
            qkv.stride(0),
            table.stride(0),
            **self._sizes,
        )
        return query
