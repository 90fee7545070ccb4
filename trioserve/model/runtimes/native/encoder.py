"""The layers of an encoder on the native kernels, with their packed weights."""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
import weakref

import torch
from torch import Tensor, nn

from ....kernels.library import Library
from ....kernels.structs import EncoderLayerSpec, EncoderSpec, MatrixSpec, TextsSpec
from ....types.pooling import PoolingInput
from ..description import release
from ..recognise.encoder import EncoderLayerParts, EncoderParts
from ..recognise.formulas import ACTIVATION_CODES
from .packer import NUMBERS, Packer


class NativeEncoder:
    """An encoder's layers, with packed weights.

    Args:
      parts: of a model on the CPU. Each layer loses its weights when they are packed, so
        that a large model is never held twice.
      num_threads: threads that compute a step.
    """

    def __init__(self, parts: EncoderParts, library: Library, num_threads: int) -> None:
        self.name = f"native {library.name}"
        self.description = f"{self.name}, {num_threads} threads"
        self._library = library
        self._pool = library.open_pool(num_threads)
        weakref.finalize(self, library.close_pool, self._pool)
        dtype = parts.layers[0].output.weight.dtype
        self._packer = Packer(library, self._pool, dtype, int8=False)
        self._layers = (EncoderLayerSpec * len(parts.layers))()
        spec = self._make_spec(parts)
        for i, layer in enumerate(parts.layers):
            self._layers[i] = self._make_layer(layer)
        self._handle = library.open_encoder(NUMBERS[dtype], ctypes.byref(spec))
        weakref.finalize(self, library.close_encoder, self._handle)

    def run(self, hidden: Tensor, inputs: Sequence[PoolingInput]) -> Tensor:
        """Run the layers.

        Args:
          hidden: (num_tokens, hidden_size), the input of the first layer
          inputs: the texts, whose tokens lie one behind the other.

        Returns:
          (num_tokens, hidden_size) in the type of `hidden`, of the last layer
        """
        states = hidden.to(torch.float32, copy=True).contiguous()
        texts = torch.tensor(
            [(each.num_tokens, each.num_tokens - each.num_unseen) for each in inputs],
            dtype=torch.int32,
        )
        spec = TextsSpec(
            hidden=states.data_ptr(),
            texts=texts.data_ptr(),
            num_tokens=len(states),
            num_texts=len(inputs),
        )
        self._library.run_encoder(self._pool, self._handle, ctypes.byref(spec))
        return states.to(hidden.dtype)

    def _make_spec(self, parts: EncoderParts) -> EncoderSpec:
        first = parts.layers[0]
        return EncoderSpec(
            layers=ctypes.addressof(self._layers),
            num_layers=len(parts.layers),
            hidden_size=first.up.in_features,
            intermediate_size=first.up.out_features,
            num_heads=parts.attention.num_heads,
            head_dim=parts.attention.key_dim,
            activation=ACTIVATION_CODES[parts.activation],
            epsilon=parts.epsilon,
            scaling=parts.attention.scaling,
        )

    def _make_layer(self, layer: EncoderLayerParts) -> EncoderLayerSpec:
        point = self._packer.point
        return EncoderLayerSpec(
            qkv=self._pack(layer.qkv),
            qkv_bias=point(torch.cat([_find_bias(each) for each in layer.qkv])),
            output=self._pack([layer.output]),
            output_bias=point(_find_bias(layer.output)),
            attention_norm=point(layer.attention_norm.weight),
            attention_norm_bias=point(layer.attention_norm.bias),
            up=self._pack([layer.up]),
            up_bias=point(_find_bias(layer.up)),
            down=self._pack([layer.down]),
            down_bias=point(_find_bias(layer.down)),
            output_norm=point(layer.output_norm.weight),
            output_norm_bias=point(layer.output_norm.bias),
        )

    def _pack(self, products: Sequence[nn.Linear]) -> MatrixSpec:
        """Pack products whose outputs follow each other."""
        spec = self._packer.pack([product.weight.detach() for product in products])
        release(products)
        return spec


def _find_bias(product: nn.Linear) -> Tensor:
    if product.bias is None:
        return torch.zeros(product.out_features)
    return product.bias.detach()
