"""The layers of a plain Llama by PyTorch's operators, which the kernels are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.kv_cache import round_trip
from ...runtimes.description import AttentionParts, Body, DecoderParts, MlpParts
from ...runtimes.native.decoder import NativeDecoder
from ...runtimes.native.packer import Weights
from ...self_check.steps import (
    COMPARED_TOKENS,
    compare_decoders,
    draw_hidden,
    make_check,
)

_WIDENED_ROWS = 4096


@torch.inference_mode()
def compare_with_torch(
    decoder: NativeDecoder,
    parts: DecoderParts,
    sources: Mapping[nn.Linear, Weights],
    embedding: nn.Module | None,
    vocab_size: int,
    *,
    int8: bool,
    kv_dtype: torch.dtype,
) -> str | None:
    """Return how a decoder's output differs from PyTorch's; None if by rounding alone.

    Args:
      parts: the parts of the decoder; its layers are plain.
      sources: the weights of its products.
      embedding: None if the first layers are elsewhere.
      kv_dtype: of the KV cache that will be used.
    """
    tables, inputs = make_check(vocab_size)
    if embedding is None:
        vectors = draw_hidden(inputs, parts.hidden_size).to(parts.dtype)
    else:
        vectors = embedding(inputs.input_ids)[0]
    num_blocks = tables.block_ids.shape[1]
    layers = decoder.open(tables, num_blocks=num_blocks, kv_dtype=kv_dtype)
    actual = layers.run(vectors, inputs, COMPARED_TOKENS, inputs.position_ids)
    expected = _Modules(parts, sources, kv_dtype).compute(vectors.float())
    given = None
    if parts.head is None:
        given = vectors[COMPARED_TOKENS].float()
        actual = actual[COMPARED_TOKENS]
    return compare_decoders(
        *(expected, actual, parts.dtype),
        int8=int8,
        int8_cache=kv_dtype == torch.int8,
        given=given,
    )


class _Modules:
    """A plain decoder by PyTorch's operators, in float32."""

    def __init__(
        self,
        parts: DecoderParts,
        sources: Mapping[nn.Linear, Weights],
        kv_dtype: torch.dtype,
    ) -> None:
        self._parts = parts
        self._keep = round_trip if kv_dtype == torch.int8 else Tensor.float
        self._sources = sources

    def compute(self, hidden: Tensor) -> Tensor:
        """Return the logits of COMPARED_TOKENS, or hidden states if there is no head.

        Args:
          hidden: (num_tokens, hidden_size), the vectors of one sequence's tokens
        """
        for layer in self._parts.layers:
            for sublayer in layer.sublayers:
                assert sublayer.norm is not None, "its layers are plain"
                normed = self._normalize(hidden, sublayer.norm)
                hidden = hidden + self._run(sublayer.body, normed)
        hidden = hidden[COMPARED_TOKENS]
        if self._parts.final_norm is None or self._parts.head is None:
            return hidden
        return self._multiply(
            self._parts.head, self._normalize(hidden, self._parts.final_norm)
        )

    def _run(self, body: Body, hidden: Tensor) -> Tensor:
        if isinstance(body, AttentionParts):
            return self._attend(body, hidden)
        assert isinstance(body, MlpParts), "its layers are plain"
        gate, up = (self._multiply(product, hidden) for product in body.inputs)
        return self._multiply(body.output, functional.silu(gate) * up)

    def _attend(self, mixer: AttentionParts, hidden: Tensor) -> Tensor:
        queries, keys, values = (
            self._multiply(product, hidden)
            .unflatten(-1, (-1, mixer.call.key_dim))
            .transpose(0, 1)[None]  # (1, num_heads, num_tokens, key_dim)
            for product in mixer.inputs
        )
        attended = functional.scaled_dot_product_attention(
            _rotate(mixer, queries),
            self._keep(_rotate(mixer, keys)),
            self._keep(values),
            is_causal=True,
            scale=mixer.call.scaling,
            enable_gqa=True,
        )
        return self._multiply(mixer.output, attended[0].transpose(0, 1).flatten(1))

    def _normalize(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._parts.epsilon)

    def _multiply(self, product: nn.Linear, hidden: Tensor) -> Tensor:
        weights = self._sources[product]
        assert isinstance(weights, Tensor), "blocks of a GGUF file are not compared"
        # A wide head would take gigabytes in float32, beside the packed weights.
        parts = weights.split(_WIDENED_ROWS)
        return torch.cat(
            [functional.linear(hidden, part.float()) for part in parts], -1
        )


def _rotate(mixer: AttentionParts, heads: Tensor) -> Tensor:
    """Turn the halves of each head by the angle of its token."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    num_tokens = heads.shape[2]
    return heads * mixer.cos[:num_tokens] + turned * mixer.sin[:num_tokens]
