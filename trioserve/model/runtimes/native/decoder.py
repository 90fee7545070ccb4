"""The layers of a decoder on the native kernels, with their packed weights and KV cache.

They may be some of a model's layers: one stage of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
from ctypes import Array, Structure
from typing import Any
import weakref

import torch
from torch import Tensor, nn

from ....kernels.library import Library
from ....kernels.structs import (
    AttentionSpec,
    DecoderSpec,
    ExpertSpec,
    MatrixSpec,
    MixtureSpec,
    StateSpec,
    SublayerSpec,
)
from ...attention.kv_cache import make_zeros
from ...attention.windows import list_windowed
from ...shards.group import TensorGroup
from ...step.slots import SlotTables
from ..choice import NotRecognised
from ..description import (
    AttentionParts,
    BesideParts,
    Body,
    DecoderParts,
    LatentParts,
    LookupParts,
    MixerParts,
    MixtureParts,
    MlpParts,
    StateParts,
    SublayerParts,
    find_mixture,
    list_products,
    release,
)
from ..recognise.formulas import ACTIVATION_CODES
from .latents import make_latent
from .layers import NativeLayers
from .packer import NUMBERS, Packer, Rows, has_other_columns, split, take
from .scans import NativeScans
from .states import find_places, make_state
from .sums import NativeSums

# SublayerKind of native/decoder.h.
_ATTENTION, _STATE, _NETWORK, _MIXTURE, _BESIDE, _LOOKUP = range(6)


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
        self._shares = _list_shared(parts)
        self._windowed = _list_windowed(parts)
        self._sublayers = (SublayerSpec * len(self._shares))()
        place = 0
        for i, layer in enumerate(parts.layers):
            last = layer.sublayers[-1]
            for sublayer in layer.sublayers:
                output_scale = layer.output_scale if sublayer is last else 1.0
                self._sublayers[place] = self._make_sublayer(sublayer, i, output_scale)
                _release(sublayer.body)
                place += 1
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
        sublayers = type(self._sublayers).from_buffer_copy(self._sublayers)
        spec.sublayers = ctypes.addressof(sublayers)
        spec.sum = None if self._sums is None else self._sums.address
        # Of attention, in order; and of states.
        caches: list[Tensor] = []
        states: list[Tensor] = []
        held: list[object] = [self, sublayers, caches, states]
        places = zip(sublayers, self._shares, self._windowed)
        for sublayer, shares, is_windowed in places:
            if sublayer.state:
                states.append(self._make_states(sublayer, tables))
                sublayer.cache = states[-1].data_ptr()
            elif sublayer.attention:
                attention = _copy_attention(sublayer)
                attention.is_windowed = is_windowed and num_window_blocks is not None
                held.append(attention)
                if shares is None:
                    count = num_window_blocks if attention.is_windowed else num_blocks
                    assert (
                        count is not None
                    ), "layers with windows have their own blocks"
                    caches.append(self._make_cache(attention, tables, count))
                else:
                    caches.append(caches[shares])
                sublayer.attention = ctypes.addressof(attention)
                sublayer.cache = caches[-1].data_ptr()
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
            states=states,
            held=held,
        )

    def _make_cache(
        self, attention: AttentionSpec, tables: SlotTables, num_blocks: int
    ) -> Tensor:
        """Allocate the keys and values of attention."""
        size = self._library.count_cache(ctypes.byref(attention), tables.block_size)
        return make_zeros((num_blocks, size), self._dtype, torch.device("cpu"))

    def _make_states(self, sublayer: SublayerSpec, tables: SlotTables) -> Tensor:
        """Allocate the states of all slots, and their copies."""
        spec = ctypes.cast(sublayer.state, ctypes.POINTER(StateSpec))
        num_places = len(tables.block_ids) + tables.num_checkpoints
        shape = num_places, self._library.count_state(spec)
        return make_zeros(shape, torch.float32, torch.device("cpu"))

    def make_scans(self) -> NativeScans:
        """Make the scans of the logits, on the threads that compute them."""
        return NativeScans(self._library, self._pool, held=self)

    # ---- the structures --------------------------------------------------------------

    def _make_sublayer(
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
                fields = self._hold_inputs([self._pack([body.gate])])
                output = self._pack([body.output])
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
            self._held += arrays
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

    def _make_state(self, mixer: StateParts) -> int:
        places = find_places(mixer, self._find_output(mixer))
        self._held.append(places)
        return self._hold(make_state(mixer, places, self._packer.point, self._pack))

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
            "output": self._pack([mlp.output]),
        }

    def _make_expert(self, inputs: Rows, has_gate: bool, output: Rows) -> ExpertSpec:
        up, gate = self._pack_gated(inputs, has_gate)
        return ExpertSpec(up=up, gate=gate, down=self._packer.pack(output))

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
        weights = getattr(mlp.experts, mlp.first_name), mlp.experts.down_proj
        firsts, seconds = (
            split(self._find_rows(each), len(mlp.router)) for each in weights
        )
        experts = [
            self._make_expert(first, mlp.has_gate, second)
            for first, second in zip(firsts, seconds)
        ]
        if (shared := mlp.shared) is not None:
            rows = self._join_rows(shared.inputs)
            output = self._join_rows([shared.output])
            experts.append(self._make_expert(rows, shared.has_gate, output))
        gate = mlp.shared_gate
        return self._hold(
            MixtureSpec(
                router=self._packer.pack(self._find_rows(mlp.router), is_exact=True),
                shared_gate=MatrixSpec() if gate is None else self._pack([gate]),
                experts=self._hold((ExpertSpec * len(experts))(*experts)),
                num_experts=len(mlp.router),
                num_chosen=mlp.num_chosen,
                num_groups=mlp.num_groups,
                num_chosen_groups=mlp.num_chosen_groups,
                num_ranked=mlp.num_ranked,
                has_shared=mlp.shared is not None,
                renormalizes=mlp.renormalizes,
                choice_bias=self._packer.point(mlp.choice_bias),
                has_sigmoid=mlp.has_sigmoid,
                scale=mlp.scale,
                expert_scales=self._packer.point(mlp.expert_scales),
                **norms,
            )
        )

    def _make_latent(self, mlp: MixtureParts) -> dict[str, Any]:
        """Return the fields for the products around experts that read fewer numbers."""
        if mlp.output is None:
            return {}
        return {
            **self._hold_inputs([self._pack(mlp.inputs)]),
            "inputs_bias": self._packer.point(_join_biases(mlp.inputs)),
            "output": self._pack([mlp.output]),
            "output_bias": self._packer.point(mlp.output.bias),
        }

    def _make_spec(self, parts: DecoderParts) -> DecoderSpec:
        head = parts.head
        return DecoderSpec(
            sublayers=ctypes.addressof(self._sublayers),
            final_norm=self._packer.point(parts.final_norm),
            head=MatrixSpec() if head is None else self._pack([head]),
            num_sublayers=len(self._sublayers),
            num_layers=len(parts.layers),
            hidden_size=parts.hidden_size,
            vocab_size=0 if head is None else head.out_features,
            activation=ACTIVATION_CODES[parts.activation],
            epsilon=parts.epsilon,
            logit_softcap=parts.logit_softcap or 0.0,
        )

    def _hold(self, structure: Structure | Array[Any]) -> int:
        """Keep a structure that another one points to; returns its address."""
        self._held.append(structure)
        return ctypes.addressof(structure)

    def _pack(self, products: Sequence[nn.Linear]) -> MatrixSpec:
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


def _list_shared(parts: DecoderParts) -> list[int | None]:
    """Return, for each body, the place among attentions whose cache it reads."""
    return [
        body.call.shares if isinstance(body, AttentionParts) else None
        for body in parts.bodies
    ]


def _list_windowed(parts: DecoderParts) -> list[bool]:
    kinds = AttentionParts | LatentParts
    calls = [each.call for each in parts.bodies if isinstance(each, kinds)]
    windowed = iter(list_windowed(calls))
    return [isinstance(each, kinds) and next(windowed) for each in parts.bodies]


def _copy_attention(sublayer: SublayerSpec) -> AttentionSpec:
    spec = ctypes.cast(sublayer.attention, ctypes.POINTER(AttentionSpec)).contents
    return AttentionSpec.from_buffer_copy(spec)


def _release(body: Body) -> None:
    """Take the weights from a sublayer that is packed."""
    mixture = find_mixture(body)
    if mixture is not None:
        release([mixture.experts], mixture.first_name)
        release([mixture.experts], "down_proj")
    release(list_products(body))
    if isinstance(body, LatentParts):
        release([body.projection])


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
