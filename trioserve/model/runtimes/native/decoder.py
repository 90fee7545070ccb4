"""The layers of a decoder on the native kernels, with their packed weights and KV cache.

They may be some of a model's layers: one stage of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
import weakref

import torch
from torch import Tensor, nn

from ....kernels.library import Library
from ....kernels.restore import STORED_KINDS
from ....kernels.structs import (
    AttentionSpec,
    DecoderSpec,
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
    Body,
    DecoderParts,
    LatentParts,
    find_mixture,
    list_products,
    list_stored,
    release,
)
from ..recognise.formulas import ACTIVATION_CODES
from .adapters import NativeAdapters
from .joined import (
    NUM_PRODUCTS,
    JoinedProduct,
    Places,
    join,
    list_joined,
    list_mixture,
)
from .layers import NativeLayers
from .packer import CACHES, Packer, Rows, are_numbers
from .scans import NativeScans
from .sublayers import SublayerPacker
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

    Raises:
      NotRecognised: no module has lost anything.
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
        packer = Packer(library, self._pool, self._dtype, int8=int8)
        sources = {**(sources or {}), **_find_stored(parts)}
        is_exact = not int8 and all(map(are_numbers, sources.values()))
        sublayers = SublayerPacker(packer, sources)
        self._embedding_scale = parts.embedding_scale
        self._plane_rotary = parts.plane_rotary
        self._look_up = parts.look_up
        self._shares = _list_shared(parts)
        self._windowed = _list_windowed(parts)
        self._sublayers = (SublayerSpec * len(self._shares))()
        # Of the outputs of bodies; a released product has no rows.
        columns = [sublayers.find_columns(each) for each in parts.bodies]
        place = 0
        for i, layer in enumerate(parts.layers):
            last = layer.sublayers[-1]
            for sublayer in layer.sublayers:
                output_scale = layer.output_scale if sublayer is last else 1.0
                self._sublayers[place] = sublayers.make(sublayer, i, output_scale)
                _release(sublayer.body, sources)
                place += 1
        self._spec = self._make_spec(parts, packer, sublayers)
        self._joined = self._list_joined(parts, columns)
        self._names = parts.names
        # Half of the bytes, where weights are rounded as much or more.
        self._adapter_dtype = self._dtype if is_exact else torch.bfloat16
        if parts.head is not None:
            release([parts.head])
        # What the structures point to. A file that the weights came from need not stay mapped.
        self._held = packer, sublayers.held

    def _list_joined(
        self, parts: DecoderParts, columns: Sequence[Places | None]
    ) -> dict[int, JoinedProduct]:
        """Return the products that adapters may change, by their places for the kernels.

        Args:
          columns: as SublayerPacker.find_columns returns them, of each body.
        """
        block_size = self._library.count_outputs()
        products: dict[int, JoinedProduct] = {}
        for i, body in enumerate(parts.bodies):
            joined = list_joined(body, self._sublayers[i], block_size, columns[i])
            products |= {i * NUM_PRODUCTS + place: each for place, each in joined}
        if parts.head is not None:
            head = join([parts.head], [self._spec.head], block_size)
            products[len(self._sublayers) * NUM_PRODUCTS] = head
        end = len(self._sublayers) * NUM_PRODUCTS + 1
        for sublayer, body in zip(self._sublayers, parts.bodies):
            if (mixture := find_mixture(body)) is None:
                continue
            spec = MixtureSpec.from_address(sublayer.mixture)
            spec.first_product = end
            joined = list_mixture(mixture, spec, block_size, parts.names)
            own = {spec.first_product + place: each for place, each in joined}
            products |= own
            end = max(own) + 1
        return products

    @property
    def description(self) -> str:
        """The names of the model and of its kernels, for the log."""
        return f"{self.name}, {self.num_threads} threads"

    def round_inputs(self) -> None:
        """Do nothing: no weights of these kernels say so."""

    def open(
        self,
        tables: SlotTables,
        *,
        num_blocks: int,
        num_window_blocks: int | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> NativeLayers:
        """Allocate a KV cache, and return the layers with it; see DecoderOnKernels."""
        kv_dtype = kv_dtype or self._dtype
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
                    caches.append(self._make_cache(attention, tables, count, kv_dtype))
                else:
                    caches.append(caches[shares])
                sublayer.attention = ctypes.addressof(attention)
                sublayer.cache = caches[-1].data_ptr()
        handle = self._library.open_decoder(CACHES[kv_dtype], ctypes.byref(spec))
        return NativeLayers(
            self._library,
            self._pool,
            handle,
            spec,
            tables,
            self._embedding_scale,
            adapters=NativeAdapters(
                self._library, self._joined, self._names, self._adapter_dtype
            ),
            look_up=self._look_up,
            plane_rotary=self._plane_rotary,
            dtype=self._dtype,
            sums=self._sums,
            states=states,
            held=held,
        )

    def _make_cache(
        self,
        attention: AttentionSpec,
        tables: SlotTables,
        num_blocks: int,
        kv_dtype: torch.dtype,
    ) -> Tensor:
        """Allocate the keys and values of attention."""
        size = self._library.count_block(
            CACHES[kv_dtype], ctypes.byref(attention), tables.block_size
        )
        return make_zeros((num_blocks, size), kv_dtype, torch.device("cpu"))

    def _make_states(self, sublayer: SublayerSpec, tables: SlotTables) -> Tensor:
        """Allocate the states of all slots, and their copies."""
        spec = ctypes.cast(sublayer.state, ctypes.POINTER(StateSpec))
        num_places = len(tables.block_ids) + tables.num_checkpoints
        shape = num_places, self._library.count_state(spec)
        return make_zeros(shape, torch.float32, torch.device("cpu"))

    def make_scans(self) -> NativeScans:
        """Make the scans of the logits, on the threads that compute them."""
        return NativeScans(self._library, self._pool, held=self)

    def _make_spec(
        self, parts: DecoderParts, packer: Packer, sublayers: SublayerPacker
    ) -> DecoderSpec:
        head = parts.head
        return DecoderSpec(
            sublayers=ctypes.addressof(self._sublayers),
            final_norm=packer.point(parts.final_norm),
            head=MatrixSpec() if head is None else sublayers.pack([head]),
            num_sublayers=len(self._sublayers),
            num_layers=len(parts.layers),
            hidden_size=parts.hidden_size,
            vocab_size=0 if head is None else head.out_features,
            activation=ACTIVATION_CODES[parts.activation],
            epsilon=parts.epsilon,
            logit_softcap=parts.logit_softcap or 0.0,
        )


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


def _find_stored(parts: DecoderParts) -> dict[Tensor, Rows]:
    """Return the rows of the weights that a checkpoint has in fewer bits.

    Raises:
      NotRecognised: the kernels do not read their format.
    """
    found = dict(list_stored(parts))
    for format in {each.format for each in found.values()} - STORED_KINDS.keys():
        raise NotRecognised(f"they do not read weights in {format}")
    return {weight: [stored] for weight, stored in found.items()}


def _release(body: Body, sources: dict[Tensor, Rows]) -> None:
    """Take the weights from a sublayer that is packed, and their rows from `sources`."""
    mixture = find_mixture(body)
    released: list[tuple[nn.Module, str]] = [
        (each, "weight") for each in list_products(body)
    ]
    if mixture is not None:
        names = mixture.first_name, "down_proj"
        released += [(mixture.experts, name) for name in names]
    if isinstance(body, LatentParts):
        released.append((body.projection, "weight"))
    for module, name in released:
        sources.pop(getattr(module, name), None)
        release([module], name)
