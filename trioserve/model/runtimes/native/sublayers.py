"""The sublayers of a decoder as the native kernels read them, with their packed weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import ctypes
from ctypes import Array, Structure
from typing import Any

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor, nn

from ....kernels.structs import (
    AttentionSpec,
    ExpertSpec,
    MatrixSpec,
    MixtureSpec,
    SublayerSpec,
)
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    BesideParts,
    Body,
    LatentParts,
    LookupParts,
    MixerParts,
    MixtureParts,
    MlpParts,
    StateParts,
    SublayerParts,
)
from .gguf_matrix import GgufMatrix
from .latents import make_latent
from .packer import Packer, Rows, has_other_columns, split, take
from .states import find_places, make_state

# SublayerKind of native/decoder.h.
_ATTENTION, _STATE, _NETWORK, _MIXTURE, _BESIDE, _LOOKUP = range(6)


class SublayerPacker:
    """Makes the structures of sublayers, and packs the products that they point to.

    Args:
      sources: the rows of the parameters that have no numbers themselves.

    Attributes:
      held: what the structures point to.
    """

    def __init__(self, packer: Packer, sources: Mapping[Tensor, Rows]) -> None:
        self.held: list[object] = []
        self._packer = packer
        self._sources = sources

    def make(
        self, sublayer: SublayerParts, layer: int, output_scale: float
    ) -> SublayerSpec:
        """Pack one sublayer.

        Args:
          output_scale: factor of the hidden states behind it.
        """
        return SublayerSpec(
            **self._make_body(sublayer.body),
            norm=self._packer.point(sublayer.norm),
            post_norm=self._packer.point(sublayer.post_norm),
            scale=sublayer.scale,
            output_scale=output_scale,
            layer=layer,
        )

    def _make_body(self, body: Body) -> dict[str, Any]:
        """Return the fields of a sublayer for its body."""
        match body:
            case AttentionParts() | LatentParts():
                fields = {"kind": _ATTENTION, "attention": self._make_attention(body)}
                return fields | self._make_products(body)
            case MlpParts():
                return {"kind": _NETWORK, **self._make_network(body)}
            case MixtureParts():
                fields = {"kind": _MIXTURE, "mixture": self._make_mixture(body)}
                return fields | self._make_latent(body)
            case BesideParts():
                fields = {"kind": _BESIDE, "mixture": self._make_beside(body)}
                return fields | self._make_network(body.network)
            case LookupParts():
                fields = self._hold_inputs([self.pack([body.gate])])
                output = self.pack([body.output])
                return {"kind": _LOOKUP, "output": output, **fields}
            case _:
                fields = {"kind": _STATE, "state": self._make_state(body)}
                return fields | self._make_products(body)

    def _make_products(self, body: MixerParts) -> dict[str, Any]:
        """Pack the first and the last product of what mixes tokens."""
        return {
            **self._pack_inputs(body),
            "inputs_scale": self._packer.point(getattr(body, "inputs_scale", None)),
            "inputs_bias": self._packer.point(_join_biases(body.inputs, body.order)),
            "output": self._packer.pack(self._find_output(body)),
            "output_bias": self._packer.point(body.output.bias),
        }

    def _make_attention(self, mixer: AttentionParts | LatentParts) -> int:
        call, point = mixer.call, self._packer.point
        own: dict[str, Any]
        if isinstance(mixer, LatentParts):
            latent, arrays = make_latent(mixer, self._packer, self._find_rows)
            self.held += arrays
            own = {"latent": self._hold(latent)}
        else:
            own = {
                "query_norm": point(mixer.query_norm),
                "key_norm": point(mixer.key_norm),
                "value_norm": point(mixer.value_norm),
                "keys_are_values": mixer.keys_are_values,
                "has_gate": mixer.has_gate,
            }
        return self._hold(
            AttentionSpec(
                **own,
                cos=point(mixer.cos),
                sin=point(mixer.sin),
                sinks=point(call.sinks),
                scaling=call.scaling,
                softcap=call.softcap or 0.0,
                window=call.window or 0,
                num_heads=call.num_heads,
                num_kv_heads=call.num_kv_heads,
                key_dim=call.key_dim,
                value_dim=call.value_dim,
                rotary_dim=mixer.cos.shape[1],
                shares_cache=call.shares is not None,
                joins_images=call.joins_images,
            )
        )

    def find_columns(self, body: Body) -> NDArray[np.int64] | None:
        """Return the order of the inputs of a body's output, among those that its rows have.

        Returns:
          (num_inputs,); None if they are in order
        """
        if isinstance(body, MlpParts | MixtureParts | BesideParts | LookupParts):
            return None
        matrix = self._find_output(body)[0]
        return matrix.columns if isinstance(matrix, GgufMatrix) else None

    def _make_state(self, mixer: StateParts) -> int:
        places = find_places(mixer, self._find_output(mixer))
        self.held.append(places)
        return self._hold(make_state(mixer, places, self._packer.point, self.pack))

    def _pack_inputs(self, mixer: MixerParts) -> dict[str, Any]:
        """Return the fields of a sublayer for the products that its body reads."""
        rows = self._join_rows(mixer.inputs)
        if mixer.order is not None:
            rows = take(rows, mixer.order.numpy())
        return self._hold_inputs(self._packer.pack_apart(rows))

    def _hold_inputs(self, specs: Sequence[MatrixSpec]) -> dict[str, Any]:
        address = self._hold((MatrixSpec * len(specs))(*specs))
        return {"inputs": address, "num_inputs": len(specs)}

    def _make_network(self, mlp: MlpParts) -> dict[str, Any]:
        """Return the fields of a sublayer for its feed-forward network."""
        inputs, gate = self._pack_gated(self._join_rows(mlp.inputs), mlp.has_gate)
        return {
            **self._hold_inputs([inputs]),
            "gate": gate,
            "gate_scale": mlp.gate_scale,
            "output": self.pack([mlp.output]),
        }

    def _make_expert(
        self, inputs: Rows, has_gate: bool, output: Rows, **biases: int | None
    ) -> ExpertSpec:
        up, gate = self._pack_gated(inputs, has_gate)
        return ExpertSpec(up=up, gate=gate, down=self._packer.pack(output), **biases)

    def _pack_gated(self, rows: Rows, has_gate: bool) -> tuple[MatrixSpec, MatrixSpec]:
        """Pack what a gate weighs, and the gate, in the same format."""
        if not has_gate:
            return self._packer.pack(rows), MatrixSpec()
        gate, up = split(rows, 2)
        packed = self._packer.pack(gate, alike=up)
        return self._packer.pack(up, alike=gate), packed

    def _make_beside(self, beside: BesideParts) -> int:
        """Make the mixture beside a network."""
        point = self._packer.point
        return self._make_mixture(
            beside.mixture,
            router_norm=point(beside.router_norm),
            input_norm=point(beside.input_norm),
            output_norm=point(beside.output_norm),
            network_norm=point(beside.network_norm),
        )

    def _make_mixture(self, mlp: MixtureParts, **norms: int | None) -> int:
        firsts, seconds = (
            self._list_experts(mlp, name) for name in (mlp.first_name, "down_proj")
        )
        experts = [
            self._make_expert(
                first, mlp.has_gate, second, **self._list_biases(mlp, index)
            )
            for index, (first, second) in enumerate(zip(firsts, seconds))
        ]
        if (shared := mlp.shared) is not None:
            rows = self._join_rows(shared.inputs)
            output = self._join_rows([shared.output])
            experts.append(self._make_expert(rows, shared.has_gate, output))
        gate, clamp = mlp.shared_gate, mlp.clamp
        return self._hold(
            MixtureSpec(
                router=self._packer.pack(self._find_rows(mlp.router), is_exact=True),
                shared_gate=MatrixSpec() if gate is None else self.pack([gate]),
                experts=self._hold((ExpertSpec * len(experts))(*experts)),
                num_experts=len(mlp.router),
                num_chosen=mlp.num_chosen,
                num_groups=mlp.num_groups,
                num_chosen_groups=mlp.num_chosen_groups,
                num_ranked=mlp.num_ranked,
                has_shared=mlp.shared is not None,
                renormalizes=mlp.renormalizes,
                router_bias=self._packer.point(mlp.router_bias),
                choice_bias=self._packer.point(mlp.choice_bias),
                has_sigmoid=mlp.has_sigmoid,
                scale=mlp.scale,
                expert_scales=self._packer.point(mlp.expert_scales),
                slope=0.0 if clamp is None else clamp.slope,
                limit=0.0 if clamp is None else clamp.limit,
                **norms,
            )
        )

    def _list_experts(self, mlp: MixtureParts, name: str) -> Iterable[Rows]:
        """Return the rows of each expert; gates come before what they weigh."""
        weight: Tensor = getattr(mlp.experts, name)
        order = mlp.order_outputs(name)
        if weight not in self._sources and (mlp.is_transposed or order is not None):
            return (
                [_take_outputs(each.T if mlp.is_transposed else each, order)]
                for each in weight.detach()
            )
        experts = split(self._find_rows(weight), len(mlp.router))
        # The rules for GGUF files have given an order.
        if order is None or isinstance(experts[0][0], GgufMatrix):
            return experts
        return (take(each, order.numpy()) for each in experts)

    def _list_biases(self, mlp: MixtureParts, index: int) -> dict[str, int | None]:
        """Return the fields of an expert for the biases of its products."""
        if not mlp.has_biases:
            return {}
        first, second = (
            _take_outputs(
                getattr(mlp.experts, f"{name}_bias")[index], mlp.order_outputs(name)
            )
            for name in (mlp.first_name, "down_proj")
        )
        gates, numbers = first.chunk(2) if mlp.has_gate else (None, first)
        point = self._packer.point
        return {
            "gate_bias": point(gates),
            "up_bias": point(numbers),
            "down_bias": point(second),
        }

    def _make_latent(self, mlp: MixtureParts) -> dict[str, Any]:
        """Return the fields for the products around experts that read fewer numbers."""
        if mlp.output is None:
            return {}
        return {
            **self._hold_inputs([self.pack(mlp.inputs)]),
            "inputs_bias": self._packer.point(_join_biases(mlp.inputs)),
            "output": self.pack([mlp.output]),
            "output_bias": self._packer.point(mlp.output.bias),
        }

    def _hold(self, structure: Structure | Array[Any]) -> int:
        """Keep a structure that another one points to; returns its address."""
        self.held.append(structure)
        return ctypes.addressof(structure)

    def pack(self, products: Sequence[nn.Linear]) -> MatrixSpec:
        """Pack products whose outputs follow each other."""
        return self._packer.pack(self._join_rows(products))

    def _join_rows(self, products: Sequence[nn.Linear]) -> Rows:
        return [row for each in products for row in self._find_rows(each.weight)]

    def _find_output(self, mixer: MixerParts) -> Rows:
        """Return the rows of a mixer's output; only a state may write in their order."""
        weight = mixer.output.weight
        if isinstance(mixer, AttentionParts | LatentParts):
            return self._find_rows(weight)
        return self._sources.get(weight) or [weight.detach().contiguous()]

    def _find_rows(self, weight: Tensor) -> Rows:
        """Return the rows of a parameter; experts follow each other.

        Raises:
          NotRecognised: its columns lie in another order.
        """
        source = self._sources.get(weight)
        if source is None:
            return [weight.detach().flatten(0, -2).contiguous()]
        if any(has_other_columns(each) for each in source):
            raise NotRecognised("the columns of a product lie in another order")
        return source


def _take_outputs(outputs: Tensor, order: Tensor | None) -> Tensor:
    return outputs.contiguous() if order is None else outputs[order]


def _join_biases(
    products: Sequence[nn.Linear], order: Tensor | None = None
) -> Tensor | None:
    if all(product.bias is None for product in products):
        return None
    biases = torch.cat(
        [
            (
                torch.zeros(product.out_features)
                if product.bias is None
                else product.bias.detach().float()
            )
            for product in products
        ]
    )
    return biases if order is None else biases[order]
