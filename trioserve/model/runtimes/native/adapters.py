"""Adapters of low rank, packed for the native kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ....kernels.library import Library
from ....kernels.structs import AdapterRun, AdditionSpec, ExpandSpec
from ...adapters.description import Changes, LowRank
from ...step.layout import StepInputs, list_runs
from ..named_products import find_name
from .joined import BlockRun, JoinedProduct

# Ranks that a step of a product reads, in every format.
_RANKS = 2


class PackedAdapter:
    """An adapter as the kernels read it.

    Args:
      additions: to each product, in the order of the kernels.
      held: what they point to.

    Attributes:
      num_bytes: of its numbers.
    """

    def __init__(
        self,
        additions: ctypes.Array[AdditionSpec],
        held: Sequence[Tensor | ctypes.Array[ExpandSpec]],
    ) -> None:
        self.num_bytes = sum(each.nbytes for each in held if isinstance(each, Tensor))
        self._additions = additions
        self._held = held

    def make_run(self, first_token: int, num_tokens: int) -> AdapterRun:
        """Return the structure for tokens that have this adapter."""
        address = ctypes.addressof(self._additions)
        return AdapterRun(
            additions=address, first_token=first_token, num_tokens=num_tokens
        )


class NativeAdapters:
    """The adapters of layers on the kernels; a LayerAdapters.

    Args:
      products: those of the layers that adapters may change, by their places for the kernels.
      names: of modules.
      dtype: of packed numbers, float32 or bfloat16.
    """

    def __init__(
        self,
        library: Library,
        products: Mapping[int, JoinedProduct],
        names: Mapping[nn.Module, str],
        dtype: torch.dtype,
    ) -> None:
        self.dtype = dtype
        self.shapes = {
            find_name(module, names): (module.out_features, module.in_features)
            for product in products.values()
            for module in product.modules
        }
        self._library = library
        self._products = products
        self._names = names
        self._adapters: dict[int, PackedAdapter] = {}

    def read(self, name: str) -> Tensor:
        product, begin, end = self._find(name)
        size = product.block_size
        weight = torch.empty(end - begin, product.num_inputs)
        first = 0  # of a matrix's outputs
        for matrix in product.matrices:
            outputs = product.order[first : first + matrix.num_outputs] - begin
            first += matrix.num_outputs
            (own,) = np.nonzero((outputs >= 0) & (outputs < end - begin))
            if not len(own):
                continue
            skipped, last = own[0] // size, own[-1] // size + 1
            num_rows = min(last * size, matrix.num_outputs) - skipped * size
            rows = torch.empty(num_rows, product.num_inputs)
            self._library.unpack(ctypes.byref(matrix), skipped, last, rows.data_ptr())
            weight[torch.from_numpy(outputs[own])] = rows[
                torch.from_numpy(own - skipped * size)
            ]
        if product.columns is None:
            return weight
        return weight[:, torch.from_numpy(product.columns)]

    def _find(self, name: str) -> tuple[JoinedProduct, int, int]:
        """Find a module; returns its range among the outputs of the modules, too."""
        for product in self._products.values():
            ends = [0, *accumulate(each.out_features for each in product.modules)]
            for module, (begin, end) in zip(product.modules, pairwise(ends)):
                if find_name(module, self._names) == name:
                    return product, begin, end
        raise KeyError(name)

    def pack(self, changes: Changes) -> PackedAdapter:
        held: list[Tensor | ctypes.Array[ExpandSpec]] = []
        additions = (AdditionSpec * (max(self._products) + 1))()
        for place, product in self._products.items():
            changed = [
                changes.get(find_name(each, self._names)) for each in product.modules
            ]
            if any(changed):
                additions[place] = self._pack_product(product, changed, held)
        return PackedAdapter(additions, held)

    def add(self, number: int, packed: PackedAdapter) -> None:
        self._adapters[number] = packed

    def remove(self, number: int) -> None:
        del self._adapters[number]

    def list_runs(self, inputs: StepInputs) -> ctypes.Array[AdapterRun]:
        """Return the runs of a step's tokens that have the same adapter."""
        runs = [
            self._adapters[number].make_run(begin, end - begin)
            for number, begin, end in list_runs(inputs.adapters, inputs.counts)
        ]
        return (AdapterRun * len(runs))(*runs)

    def _pack_product(
        self,
        product: JoinedProduct,
        changes: Sequence[LowRank | None],
        held: list[Tensor | ctypes.Array[ExpandSpec]],
    ) -> AdditionSpec:
        ranks = [0 if each is None else _round_up(each.rank) for each in changes]
        ends = [0, *accumulate(ranks)]
        shrink = torch.zeros(ends[-1], product.num_inputs)
        for change, begin in zip(changes, ends):
            if change is not None:
                shrink[begin : begin + change.rank] = change.a
        if product.columns is not None:
            ordered = torch.empty_like(shrink)
            ordered[:, torch.from_numpy(product.columns)] = shrink
            shrink = ordered
        packed = _pack_shrink(shrink.to(self.dtype), product.block_size)
        runs = [
            self._pack_run(each, product, changes, ends, held) for each in product.runs
        ]
        expands = [each for each in runs if each is not None]
        array = (ExpandSpec * len(expands))(*expands)
        held += [packed, array]
        return AdditionSpec(
            shrink=packed.data_ptr(),
            expands=ctypes.addressof(array),
            num_expands=len(expands),
            rank=ends[-1],
            num_inputs=product.num_inputs,
        )

    def _pack_run(
        self,
        run: BlockRun,
        product: JoinedProduct,
        changes: Sequence[LowRank | None],
        ends: Sequence[int],
        held: list[Tensor | ctypes.Array[ExpandSpec]],
    ) -> ExpandSpec | None:
        """Pack the B's of some blocks; returns None if nothing changes them."""
        size = product.block_size
        places = range(run.first_module, run.last_module + 1)
        sizes = [product.modules[i].out_features for i in places]
        begins = [0, *accumulate(sizes)]
        first, num_ranks = ends[run.first_module], ends[places.stop]
        num_ranks -= first
        if not num_ranks:
            return None
        outputs = torch.from_numpy(run.outputs)
        # The last output is the one that is not there.
        expand = torch.zeros(begins[-1] + 1, num_ranks, dtype=self.dtype)
        scales = torch.ones(begins[-1] + 1)
        has_scales = False
        for i, (begin, end) in zip(places, pairwise(begins)):
            change = changes[i]
            if change is None:
                continue
            rank = ends[i] - first
            b = change.b
            if change.output_scale is not None:
                scales[begin:end] = change.output_scale
                has_scales = True
                b = change.output_scale[:, None] * b
            expand[begin:end, rank : rank + change.rank] = b
        packed = _pack_blocks(expand[outputs], size)
        held.append(packed)
        spec = ExpandSpec(
            weights=packed.data_ptr(),
            first_block=run.first_block,
            num_blocks=len(outputs) // size,
            first_rank=first,
            num_ranks=num_ranks,
        )
        if has_scales:
            chosen = scales[outputs]
            held.append(chosen)
            spec.scales = chosen.data_ptr()
        return spec


def _round_up(rank: int) -> int:
    return -(-rank // _RANKS) * _RANKS


def _pack_shrink(a: Tensor, block_size: int) -> Tensor:
    """Pack all A's of a product, (rank, num_inputs)."""
    whole = len(a) // block_size * block_size
    parts = [_pack_blocks(a[:whole], block_size)]
    if rest := len(a) - whole:
        width = block_size // 2 if rest <= block_size // 2 else block_size
        last = functional.pad(a[whole:], (0, 0, 0, width - rest))
        parts.append(_pack_blocks(last, width))
    return torch.cat(parts)


def _pack_blocks(rows: Tensor, width: int) -> Tensor:
    """Pack rows, a multiple of `width`, as native/packed.h draws it; returns all in a row."""
    blocks: Tensor = rows.unflatten(0, (-1, width))
    if rows.dtype == torch.bfloat16:
        # Two inputs of an output lie side by side.
        blocks = functional.pad(blocks, (0, rows.shape[1] % 2)).unflatten(2, (-1, 2))
    return blocks.transpose(1, 2).flatten()
