"""The layers of a decoder on the native kernels, with their packed weights and KV cache.

They may be some of a model's layers: one stage of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
from typing import Any
import weakref

import torch
from torch import Tensor, nn

from ....kernels.library import Library
from ....kernels.structs import (
    DecoderSpec,
    ExpertSpec,
    LayerSpec,
    MatrixSpec,
    MixtureSpec,
    StateSpec,
)
from ...attention.kv_cache import make_zeros
from ...attention.windows import list_windowed
from ...shards.group import TensorGroup
from ...step.slots import SlotTables
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    BesideParts,
    DecoderParts,
    LayerParts,
    LookupParts,
    MixtureParts,
    MlpParts,
    StateParts,
    release,
)
from ..recognise.formulas import ACTIVATION_CODES
from .layers import NativeLayers
from .packer import NUMBERS, Packer, Rows, has_other_columns, split, take
from .scans import NativeScans
from .states import find_places, make_state
from .sums import NativeSums


class NativeDecoder:
    """A decoder's layers, with packed weights.

    Args:
      parts: of a model on the CPU. Each product loses its weight when that is packed, so
        that a large model is never held twice.
      num_threads: threads that compute a step.
      int8: quantise the weights that are numbers.
      group: the processes that share the layers; None if they are whole.
      sources: the rows of the parameters that have no numbers themselves.
    """

    def __init__(
        self,
        parts: DecoderParts,
        library: Library,
        num_threads: int,
        *,
        int8: bool = False,
        group: TensorGroup | None = None,
        sources: Mapping[Tensor, Rows] | None = None,
    ) -> None:
        self.name = f"native {library.name}{' int8' if int8 else ''}"
        self.num_threads = num_threads
        self._sums = None if group is None else NativeSums(group)
        self._library = library
        self._pool = library.open_pool(num_threads)
        weakref.finalize(self, library.close_pool, self._pool)
        self._dtype = parts.dtype
        self._sources = sources or {}
        self._packer = Packer(library, self._pool, self._dtype, int8=int8)
        # The arrays of structures that others point to.
        self._held: list[object] = []
        self._embedding_scale = parts.embedding_scale
        self._plane_rotary = parts.plane_rotary
        self._look_up = parts.look_up
        self._shares = [_find_shared(layer.mixer) for layer in parts.layers]
        self._windowed = _list_windowed(parts.layers)
        self._layers = (LayerSpec * len(parts.layers))()
        for i, layer in enumerate(parts.layers):
            self._layers[i] = self._make_layer(layer)
            _release_layer(layer)
        self._spec = self._make_spec(parts)
        if parts.head is not None:
            release([parts.head])
        # A file that the weights came from need not stay mapped.
        self._sources = {}

    @property
    def description(self) -> str:
        """The names of the model and of its kernels, for the log."""
        return f"{self.name}, {self.num_threads} threads"

    def open(
        self,
        tables: SlotTables,
        *,
        num_blocks: int,
        num_window_blocks: int | None = None,
    ) -> NativeLayers:
        """Allocate a KV cache, and return the layers with it; see DecoderOnKernels."""
        spec = DecoderSpec.from_buffer_copy(self._spec)
        spec.block_size = tables.block_size
        layers = type(self._layers).from_buffer_copy(self._layers)
        spec.layers = ctypes.addressof(layers)
        spec.sum = None if self._sums is None else self._sums.address
        caches: list[Tensor] = []
        for layer, shares, is_windowed in zip(layers, self._shares, self._windowed):
            layer.is_windowed = is_windowed and num_window_blocks is not None
            if shares is None:
                count = num_window_blocks if layer.is_windowed else num_blocks
                assert count is not None, "layers with windows have their own blocks"
                caches.append(self._make_cache(layer, tables, count))
            else:
                caches.append(caches[shares])
            layer.cache = caches[-1].data_ptr()
        handle = self._library.open_decoder(NUMBERS[self._dtype], ctypes.byref(spec))
        return NativeLayers(
            self._library,
            self._pool,
            handle,
            spec,
            tables,
            self._embedding_scale,
            look_up=self._look_up,
            plane_rotary=self._plane_rotary,
            dtype=self._dtype,
            sums=self._sums,
            states=[cache for layer, cache in zip(layers, caches) if layer.state],
            held=(self, layers, caches),
        )

    def _make_cache(
        self, layer: LayerSpec, tables: SlotTables, num_blocks: int
    ) -> Tensor:
        """Allocate the keys and values of a layer, or its states."""
        cpu = torch.device("cpu")
        if layer.state:
            spec = ctypes.cast(layer.state, ctypes.POINTER(StateSpec))
            num_places = len(tables.block_ids) + tables.num_checkpoints
            shape = num_places, self._library.count_state(spec)
            return make_zeros(shape, torch.float32, cpu)
        size = self._library.count_cache(ctypes.byref(layer), tables.block_size)
        return make_zeros((num_blocks, size), self._dtype, cpu)

    def make_scans(self) -> NativeScans:
        """Make the scans of the logits, on the threads that compute them."""
        return NativeScans(self._library, self._pool, held=self)

    # ---- the structures --------------------------------------------------------------

    def _make_layer(self, layer: LayerParts) -> LayerSpec:
        point = self._packer.point
        mixer = layer.mixer
        return LayerSpec(
            **(
                self._make_attention(mixer)
                if isinstance(mixer, AttentionParts)
                else self._make_state(mixer)
            ),
            **self._make_mlp(layer.mlp),
            **self._make_beside(layer.beside),
            **self._make_lookup(layer.lookup),
            **self._pack_inputs(mixer),
            inputs_bias=point(_join_biases(mixer)),
            input_norm=point(layer.input_norm),
            output=self._packer.pack(self._find_output(mixer)),
            output_bias=point(mixer.output.bias),
            mixer_post_norm=point(layer.post_mixer_norm),
            mlp_norm=point(layer.mlp_norm),
            mlp_post_norm=point(layer.post_mlp_norm),
            output_scale=layer.output_scale,
        )

    def _make_attention(self, mixer: AttentionParts) -> dict[str, Any]:
        """Return the fields of a layer for its attention."""
        call, point = mixer.call, self._packer.point
        return {
            "query_norm": point(mixer.query_norm),
            "key_norm": point(mixer.key_norm),
            "value_norm": point(mixer.value_norm),
            "keys_are_values": mixer.keys_are_values,
            "cos": point(mixer.cos),
            "sin": point(mixer.sin),
            "sinks": point(call.sinks),
            "scaling": call.scaling,
            "softcap": call.softcap or 0.0,
            "window": call.window or 0,
            "num_heads": call.num_heads,
            "num_kv_heads": call.num_kv_heads,
            "key_dim": call.key_dim,
            "value_dim": call.value_dim,
            "rotary_dim": mixer.cos.shape[1],
            "has_gate": mixer.has_gate,
            "shares_cache": call.shares is not None,
        }

    def _make_lookup(self, lookup: LookupParts | None) -> dict[str, Any]:
        """Return the fields of a layer for the vectors that it looks up."""
        if lookup is None:
            return {}
        return {
            "lookup_gate": self._pack([lookup.gate]),
            "lookup_projection": self._pack([lookup.projection]),
            "lookup_norm": self._packer.point(lookup.norm),
        }

    def _make_state(self, mixer: StateParts) -> dict[str, Any]:
        """Return the fields of a layer for its state."""
        places = find_places(mixer, self._find_output(mixer))
        spec = make_state(mixer, places, self._packer.point)
        self._held += [spec, places]
        return {"state": ctypes.addressof(spec)}

    def _pack_inputs(self, mixer: AttentionParts | StateParts) -> dict[str, Any]:
        """Return the fields of a layer for the products that its mixer reads."""
        rows = self._join_rows(mixer.inputs)
        if mixer.order is not None:
            rows = take(rows, mixer.order.numpy())
        specs = self._packer.pack_apart(rows)
        array = (MatrixSpec * len(specs))(*specs)
        self._held.append(array)
        return {"inputs": ctypes.addressof(array), "num_inputs": len(specs)}

    def _make_mlp(self, mlp: MlpParts | MixtureParts) -> dict[str, Any]:
        """Return the fields of a layer for its feed-forward network."""
        if isinstance(mlp, MlpParts):
            return self._pack_mlp(
                self._join_rows(mlp.gate_up), self._find_rows(mlp.down.weight)
            )
        return self._make_mixture(mlp)

    def _make_beside(self, beside: BesideParts | None) -> dict[str, Any]:
        """Return the fields of a layer for the mixture beside its network."""
        if beside is None:
            return {}
        point = self._packer.point
        return self._make_mixture(
            beside.mixture,
            router_norm=point(beside.router_norm),
            input_norm=point(beside.input_norm),
            output_norm=point(beside.output_norm),
            network_norm=point(beside.network_norm),
        )

    def _make_mixture(self, mlp: MixtureParts, **norms: int | None) -> dict[str, Any]:
        count = len(mlp.router)
        gate_ups = split(self._find_rows(mlp.experts.gate_up_proj), count)
        downs = split(self._find_rows(mlp.experts.down_proj), count)
        experts = [self._pack_mlp(*each) for each in zip(gate_ups, downs)]
        if mlp.shared is not None:
            experts.append(self._make_mlp(mlp.shared))
        array = (ExpertSpec * len(experts))(*(ExpertSpec(**each) for each in experts))
        gate = mlp.shared_gate
        mixture = MixtureSpec(
            router=self._packer.pack(self._find_rows(mlp.router), is_exact=True),
            shared_gate=MatrixSpec() if gate is None else self._pack([gate]),
            experts=ctypes.addressof(array),
            num_experts=len(mlp.router),
            num_chosen=mlp.num_chosen,
            has_shared=mlp.shared is not None,
            renormalizes=mlp.renormalizes,
            choice_bias=self._packer.point(mlp.choice_bias),
            has_sigmoid=mlp.has_sigmoid,
            scale=mlp.scale,
            expert_scales=self._packer.point(mlp.expert_scales),
            **norms,
        )
        self._held += [array, mixture]
        return {"mixture": ctypes.addressof(mixture)}

    def _pack_mlp(self, gate_up: Rows, down: Rows) -> dict[str, Any]:
        gate, up = split(gate_up, 2)
        return {
            "gate": self._packer.pack(gate, alike=up),
            "up": self._packer.pack(up, alike=gate),
            "down": self._packer.pack(down),
        }

    def _make_spec(self, parts: DecoderParts) -> DecoderSpec:
        head = parts.head
        return DecoderSpec(
            layers=ctypes.addressof(self._layers),
            final_norm=self._packer.point(parts.final_norm),
            head=MatrixSpec() if head is None else self._pack([head]),
            num_layers=len(parts.layers),
            hidden_size=parts.hidden_size,
            intermediate_size=max(map(_count_activated, parts.layers)),
            vocab_size=0 if head is None else head.out_features,
            activation=ACTIVATION_CODES[parts.activation],
            epsilon=parts.epsilon,
            logit_softcap=parts.logit_softcap or 0.0,
            residual_scale=parts.residual_scale,
        )

    def _pack(self, products: Sequence[nn.Linear]) -> MatrixSpec:
        """Pack products whose outputs follow each other."""
        return self._packer.pack(self._join_rows(products))

    def _join_rows(self, products: Sequence[nn.Linear]) -> Rows:
        return [row for each in products for row in self._find_rows(each.weight)]

    def _find_output(self, mixer: AttentionParts | StateParts) -> Rows:
        """Return the rows of a mixer's output; only a state may write in their order."""
        weight = mixer.output.weight
        if isinstance(mixer, AttentionParts):
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


def _find_shared(mixer: AttentionParts | StateParts) -> int | None:
    return mixer.call.shares if isinstance(mixer, AttentionParts) else None


def _list_windowed(layers: Sequence[LayerParts]) -> list[bool]:
    mixers = [layer.mixer for layer in layers]
    calls = [each.call for each in mixers if isinstance(each, AttentionParts)]
    windowed = iter(list_windowed(calls))
    return [isinstance(each, AttentionParts) and next(windowed) for each in mixers]


def _count_activated(layer: LayerParts) -> int:
    """Return the largest number of activated numbers of a token, without experts'."""
    mlp, lookup = layer.mlp, layer.lookup
    return max(
        mlp.down.in_features if isinstance(mlp, MlpParts) else 0,
        0 if lookup is None else lookup.gate.out_features,
    )


def _release_layer(layer: LayerParts) -> None:
    mlp: MlpParts | MixtureParts | None = layer.mlp
    if isinstance(mlp, MixtureParts):
        _release_experts(mlp)
        mlp = mlp.shared
    if layer.beside is not None:
        _release_experts(layer.beside.mixture)
    if mlp is not None:
        release([*mlp.gate_up, mlp.down])
    release([*layer.mixer.inputs, layer.mixer.output])
    if layer.lookup is not None:
        release([layer.lookup.gate, layer.lookup.projection])


def _release_experts(mixture: MixtureParts) -> None:
    release([mixture.experts], "gate_up_proj")
    release([mixture.experts], "down_proj")


def _join_biases(mixer: AttentionParts | StateParts) -> Tensor | None:
    if all(product.bias is None for product in mixer.inputs):
        return None
    biases = torch.cat(
        [
            (
                torch.zeros(product.out_features)
                if product.bias is None
                else product.bias.detach().float()
            )
            for product in mixer.inputs
        ]
    )
    return biases if mixer.order is None else biases[mixer.order]
