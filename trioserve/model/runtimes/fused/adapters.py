"""Adapters of low rank on a GPU: their matrices by slots, and the tiles of tokens that have them.

Each adapter holds a slot of one table on the device, which has the addresses of its matrices.
Kernels find them by the numbers of slots that come with a step, so a graph is right for all
adapters. It depends only on the place of the table, on its largest rank, and on the products
that some adapter has changed: if one of these grows, graphs are captured again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor, nn

from ....kernels.triton.adapters import (
    Blocks,
    Change,
    change_outputs,
    count_columns,
    cut_blocks,
    lay_out_changes,
)
from ....kernels.triton.paged import count_cores
from ....kernels.triton.tiles import (
    ADAPTER_NUMBERS,
    AdapterTiles,
    count_adapter_tokens,
    cut_adapters,
)
from ....types.adapter import NO_ADAPTER
from ...adapters.config import AdapterProblem
from ...adapters.description import Changes, LowRank
from ...device.numbers import Numbers
from ...step.layout import StepInputs
from .adapter_check import find_fault
from .products import Product

# Slot 0 changes nothing. As many as --max-adapters has by default.
_FEWEST_SLOTS = 65

# Ranks of all modules of a product: 64 for queries, keys and values.
_LEAST_WIDTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAdapter:
    """An adapter on the device.

    Args:
      lines: (num_products, columns) int64, of the table
      changes: the matrices that the lines point to, by the places of products.
    """

    lines: Tensor
    changes: Mapping[int, Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A product, as the kernels of adapters see it."""

    number: int
    product: Product
    blocks: Blocks


@dataclass(slots=True)
class _Grown:
    """The facts that graphs depend on.

    Args:
      table: (num_slots, num_products, columns) int64
      width: as in `change_outputs`.
      changed: the places of products that adapters have changed.
    """

    table: Tensor
    width: int
    changed: set[int] = field(default_factory=set)

    def make_room(self, slot: int, packed: PackedAdapter) -> bool:
        """Make room for an adapter; return whether something has grown."""
        has_grown = not packed.changes.keys() <= self.changed
        self.changed |= packed.changes.keys()
        while slot >= len(self.table):
            self.table = torch.cat((self.table, torch.zeros_like(self.table)))
            has_grown = True
        width = _widen(self.width, packed.changes.values())
        has_grown = has_grown or width > self.width
        self.width = width
        return has_grown


class FusedAdapters:
    """The adapters of a decoder's joined products; a LayerAdapters.

    Args:
      products: those that adapters may change.
      names: of their modules.
      dtype: of the matrices, the model's.

    Attributes:
      on_growth: is called behind an `add` after which graphs must be captured again.
    """

    def __init__(
        self,
        products: Sequence[Product],
        names: Mapping[nn.Module, str],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shapes = {
            names[module]: (module.out_features, module.in_features)
            for product in products
            for module in product.modules
        }
        self.on_growth: Callable[[], None] = lambda: None
        self._names = names
        self._dtype = dtype
        self._device = device
        self._num_cores = count_cores(device)
        self._places = {
            each: _Place(number=number, product=each, blocks=_cut_blocks(each, device))
            for number, each in enumerate(products)
        }
        columns = count_columns(max(len(each.modules) for each in products))
        self._grown = _Grown(
            torch.zeros(
                (_FEWEST_SLOTS, len(products), columns),
                dtype=torch.int64,
                device=device,
            ),
            _LEAST_WIDTH,
        )
        self._slots = {NO_ADAPTER: 0}
        self._packed: dict[int, PackedAdapter] = {}
        # The kinds of products on which the kernels were tried.
        self._checked: set[object] = set()

    @property
    def has_changes(self) -> bool:
        """True if an adapter was added."""
        return bool(self._grown.changed)

    def read(self, name: str) -> Tensor:
        product, begin, end = self._find(name)
        order = product.get_order()
        (own,) = torch.nonzero((order >= begin) & (order < end), as_tuple=True)
        weight = torch.empty(end - begin, product.weight.shape[1])
        weight[order[own] - begin] = product.weight.read(own)
        return weight

    def _find(self, name: str) -> tuple[Product, int, int]:
        """Find a module; returns its range among the outputs of the modules, too."""
        for product in self._places:
            ends = [0, *accumulate(each.out_features for each in product.modules)]
            for module, (begin, end) in zip(product.modules, pairwise(ends)):
                if self._names[module] == name:
                    return product, begin, end
        raise KeyError(name)

    def pack(self, changes: Changes) -> PackedAdapter:
        """Pack an adapter, and try the kernels on it; see LayerAdapters.

        Raises:
          AdapterProblem: the kernels do not compute what they should.
        """
        packed: dict[int, Change] = {}
        lines = torch.zeros(self._grown.table.shape[1:], dtype=torch.int64)
        for place in self._places.values():
            own = [changes.get(self._names[each]) for each in place.product.modules]
            if any(own):
                change = self._pack_product(place.product, own)
                packed[place.number] = change
                lines[place.number] = torch.tensor(change.make_line(lines.shape[1]))
                self._check(place, own, change, lines[place.number])
        return PackedAdapter(lines=lines.to(self._device), changes=packed)

    def _check(
        self,
        place: _Place,
        own: Sequence[LowRank | None],
        change: Change,
        line: Tensor,
    ) -> None:
        """Try the kernels, once for each kind of product; see find_fault."""
        product = place.product
        shape, has_bias = product.weight.shape, product.bias is not None
        kind = shape, len(product.modules), has_bias, change.scale is not None
        if kind in self._checked:
            return
        table = torch.stack((torch.zeros_like(line), line)).to(self._device)
        width = _widen(self._grown.width, [change])
        fault = find_fault(product, own, partial(self._launch, place, table, width))
        if fault is not None:
            raise AdapterProblem(
                f"the kernels cannot run it: {fault}; start with --kernels torch"
            )
        self._checked.add(kind)

    def _pack_product(self, product: Product, own: Sequence[LowRank | None]) -> Change:
        """Pack the matrices for the modules of a product."""
        sizes = [each.out_features for each in product.modules]
        scales = [None if each is None else each.output_scale for each in own]
        scale = None
        if any(each is not None for each in scales):
            parts = [
                torch.ones(size) if each is None else each
                for each, size in zip(scales, sizes)
            ]
            scale = torch.cat(parts)
        return lay_out_changes(
            [None if each is None else (each.a, each.b) for each in own],
            scale,
            product.order,
            sizes,
            self._dtype,
            self._device,
        )

    def add(self, number: int, packed: PackedAdapter) -> None:
        slot = min({*range(len(self._slots) + 1)} - {*self._slots.values()})
        has_grown = self._grown.make_room(slot, packed)
        self._grown.table[slot].copy_(packed.lines)
        self._slots[number] = slot
        self._packed[number] = packed
        if has_grown:
            self.on_growth()

    def remove(self, number: int) -> None:
        # The memory is given to later work of the same stream only, so steps in flight may
        # still read it.
        self._grown.table[self._slots.pop(number)].zero_()
        del self._packed[number]

    def list_tiles(self, inputs: StepInputs) -> Numbers:
        """Return the tiles of tokens that have the same adapter, (num_tiles, 3) int32."""
        runs = [
            (self._slots[number], row.num_tokens)
            for number, row in zip(inputs.adapters, inputs.rows)
        ]
        return _cut(runs, count_adapter_tokens(inputs.has_chunks))

    def cut(self, inputs: StepInputs) -> AdapterTiles | None:
        """Cut the tokens of a step into tiles; None if no token has an adapter."""
        if not inputs.adapters:
            return None
        return AdapterTiles(
            numbers=inputs.numbers.add(self.list_tiles(inputs)).get(),
            num_tokens=count_adapter_tokens(inputs.has_chunks),
        )

    def cut_wanted(
        self, inputs: StepInputs, tokens: Sequence[int]
    ) -> AdapterTiles | None:
        """Cut the flat tokens that the head reads in the same way."""
        if not inputs.adapters:
            return None
        ends = [*accumulate(row.num_tokens for row in inputs.rows)]
        rows = (bisect_right(ends, token) for token in tokens)
        runs = [(self._slots[inputs.adapters[row]], 1) for row in rows]
        num_tokens = count_adapter_tokens(False)
        return AdapterTiles(
            numbers=inputs.numbers.add(_cut(runs, num_tokens)).get(),
            num_tokens=num_tokens,
        )

    def change(
        self,
        product: Product,
        given: Tensor,
        output: Tensor,
        tiles: AdapterTiles | None,
    ) -> None:
        """Change the outputs of a product, in place.

        Args:
          given: (num_tokens, num_inputs)
          output: (num_tokens, num_outputs), of the product alone
          tiles: of these tokens; None if none has an adapter
        """
        place = self._places[product]
        if tiles is None or place.number not in self._grown.changed:
            return
        if len(tiles.numbers):
            table = self._grown.table[:, place.number]
            self._launch(place, table, self._grown.width, given, output, tiles)

    def _launch(
        self,
        place: _Place,
        table: Tensor,
        width: int,
        given: Tensor,
        output: Tensor,
        tiles: AdapterTiles,
    ) -> None:
        change_outputs(
            given,
            output,
            table=table,
            tiles=tiles,
            blocks=place.blocks,
            bias=place.product.bias,
            num_modules=len(place.product.modules),
            width=width,
            num_cores=self._num_cores,
        )


def _cut(runs: Sequence[tuple[int, int]], num_tokens: int) -> Numbers:
    tiles = np.array(cut_adapters(runs, num_tokens), dtype=np.int32)
    return tiles.reshape(-1, ADAPTER_NUMBERS)


def _widen(width: int, changes: Iterable[Change]) -> int:
    """Return a width with room for the ranks of changes."""
    most = max((each.num_ranks for each in changes), default=0)
    while width < most:
        width *= 2
    return width


def _cut_blocks(product: Product, device: torch.device) -> Blocks:
    sizes = torch.tensor([each.out_features for each in product.modules])
    modules = torch.arange(len(sizes)).repeat_interleave(sizes)
    owners, counts = modules[product.get_order()].unique_consecutive(return_counts=True)
    return cut_blocks(zip(owners.tolist(), counts.tolist()), device)
