"""An encoder's kernels compute what PyTorch computes, for sizes and values by chance."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_void_p

from hypothesis import example, given, strategies as st
import torch
from torch import Tensor
from torch.nn import functional

from trioserve.kernels.structs import (
    EncoderLayerSpec,
    EncoderSpec,
    MatrixSpec,
    TextsSpec,
)

from .chance import FORMATS, by_chance, make_numbers

EPSILON = 1e-5


@by_chance
@given(size=st.integers(1, 200), seed=st.integers(0, 99), mean=st.sampled_from([0, 99]))
def test_a_layer_norm_is_that_of_pytorch(
    kernels: ctypes.CDLL, size: int, seed: int, mean: int
) -> None:
    x = make_numbers(seed, size) * 3 + mean
    weight, bias = make_numbers(seed + 1, size), make_numbers(seed + 2, size)
    expected = functional.layer_norm(
        x.double(), (size,), weight.double(), bias.double(), EPSILON
    )
    kernels.test_normalize_layer(
        *(c_void_p(each.data_ptr()) for each in (x, weight, bias)),
        *(size, c_float(EPSILON)),
    )
    torch.testing.assert_close(x.double(), expected, rtol=1e-4, atol=1e-4)


class Layer:
    """Random weights of one layer, and its formula.

    Args:
      dtype: of the matrices.
      width, attended, inner: numbers of a token in and out of a layer, in all heads, and
        between the products of the feed-forward part.
    """

    def __init__(
        self, seed: int, dtype: torch.dtype, width: int, attended: int, inner: int
    ) -> None:
        shapes = {
            "qkv": (3 * attended, width),
            "output": (width, attended),
            "up": (inner, width),
            "down": (width, inner),
            **dict.fromkeys(("output_bias", "down_bias"), (width,)),
            **dict.fromkeys(("attention_norm", "attention_norm_bias"), (width,)),
            **dict.fromkeys(("output_norm", "output_norm_bias"), (width,)),
            "qkv_bias": (3 * attended,),
            "up_bias": (inner,),
        }
        self.weights = {
            name: make_numbers(seed + i, *shape) / shape[-1] ** 0.5
            for i, (name, shape) in enumerate(shapes.items())
        }
        for name in ("qkv", "output", "up", "down"):
            self.weights[name] = self.weights[name].to(dtype)

    def point(self) -> EncoderLayerSpec:
        return EncoderLayerSpec(
            **{
                name: (
                    MatrixSpec(
                        weights=weight.data_ptr(),
                        format=FORMATS[weight.dtype],
                        num_outputs=len(weight),
                        num_inputs=weight.shape[1],
                    )
                    if weight.dim() == 2
                    else weight.data_ptr()
                )
                for name, weight in self.weights.items()
            }
        )

    def run(self, hidden: Tensor, num_keys: int, num_heads: int) -> Tensor:
        """Compute the layer for one text in float64."""
        weights = {name: each.double() for name, each in self.weights.items()}

        def multiply(x: Tensor, name: str) -> Tensor:
            return functional.linear(x, weights[name], weights[f"{name}_bias"])

        def normalize(x: Tensor, name: str) -> Tensor:
            parameters = weights[name], weights[f"{name}_bias"]
            return functional.layer_norm(x, x.shape[-1:], *parameters, EPSILON)

        q, k, v = (
            part.unflatten(-1, (num_heads, -1)).transpose(0, 1)
            for part in multiply(hidden, "qkv").chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(
            q, k[:, :num_keys], v[:, :num_keys]
        )
        added = multiply(attended.transpose(0, 1).flatten(1), "output")
        hidden = normalize(hidden + added, "attention_norm")
        activated = functional.gelu(multiply(hidden, "up"))
        return normalize(hidden + multiply(activated, "down"), "output_norm")


@by_chance
@given(
    dtype=st.sampled_from(list(FORMATS)),
    texts=st.lists(
        st.integers(1, 70).flatmap(
            lambda size: st.tuples(st.just(size), st.integers(1, size))
        ),
        min_size=1,
        max_size=8,
    ),
    width=st.integers(1, 35).map(lambda n: 2 * n),
    num_heads=st.integers(1, 3),
    head_dim=st.integers(1, 20).map(lambda n: 2 * n),
    inner=st.integers(1, 70),
    num_layers=st.integers(1, 2),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@example(
    dtype=torch.float32,
    texts=[(300, 300), (1, 1), (512, 500)],
    width=48,
    num_heads=2,
    head_dim=32,
    inner=64,
    num_layers=1,
    num_threads=2,
    seed=0,
)
def test_texts_are_encoded_by_the_formula(
    kernels: ctypes.CDLL,
    dtype: torch.dtype,
    texts: list[tuple[int, int]],
    width: int,
    num_heads: int,
    head_dim: int,
    inner: int,
    num_layers: int,
    num_threads: int,
    seed: int,
) -> None:
    """Each text attends to itself alone, and its unseen tokens are nobody's keys."""
    layers = [
        Layer(seed + 100 * i, dtype, width, num_heads * head_dim, inner)
        for i in range(num_layers)
    ]
    sizes = [size for size, _ in texts]
    hidden = make_numbers(seed, sum(sizes), width)
    expected = []
    for part, (_, num_keys) in zip(hidden.split(sizes), texts):
        states = part.double()
        for layer in layers:
            states = layer.run(states, num_keys, num_heads)
        expected.append(states)
    specs = (EncoderLayerSpec * num_layers)(*(layer.point() for layer in layers))
    encoder = EncoderSpec(
        layers=ctypes.addressof(specs),
        num_layers=num_layers,
        hidden_size=width,
        intermediate_size=inner,
        num_heads=num_heads,
        head_dim=head_dim,
        activation=2,
        epsilon=EPSILON,
        scaling=head_dim**-0.5,
    )
    table = torch.tensor(texts, dtype=torch.int32)
    step = TextsSpec(
        hidden=hidden.data_ptr(),
        texts=table.data_ptr(),
        num_tokens=len(hidden),
        num_texts=len(texts),
    )
    kernels.test_encode(
        FORMATS[dtype], num_threads, ctypes.byref(encoder), ctypes.byref(step)
    )
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    error = (hidden - torch.cat(expected)).norm() / torch.cat(expected).norm()
    assert error < tolerance
