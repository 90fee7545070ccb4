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

from ....kernels.triton.adapted_pairs import PairChanges, lay_out_pairs
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
from ...step.layout import StepInputs, list_runs
from ..named_products import find_name
from .adapter_check import find_fault
from .expert_products import ExpertProduct, find_expert_fault
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
        products: Sequence[Product | ExpertProduct],
        names: Mapping[nn.Module, str],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shapes = {
            find_name(module, names): (module.out_features, module.in_features)
            for product in products
            for module in product.modules
        }
        self.on_growth: Callable[[], None] = lambda: None
        self._names = names
        self._dtype = dtype
        self._device = device
        self._num_cores = count_cores(device)
        # The places of products in a line of the table.
        self._places = {each: place for place, each in enumerate(products)}
        self._blocks = {
            each: _cut_blocks(each, device)
            for each in products
            if isinstance(each, Product)
        }
        # The weights of all experts are one module for the kernels.
        columns = count_columns(max(len(each.modules) for each in self._blocks))
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
        for product in self._blocks:
            ends = [0, *accumulate(each.out_features for each in product.modules)]
            for module, (begin, end) in zip(product.modules, pairwise(ends)):
                if find_name(module, self._names) == name:
                    return product, begin, end
        raise KeyError(name)

    def pack(self, changes: Changes) -> PackedAdapter:
        """Pack an adapter, and try the kernels on it; see LayerAdapters.

        Raises:
          AdapterProblem: the kernels do not compute what they should.
        """
        packed: dict[int, Change] = {}
        lines = torch.zeros(self._grown.table.shape[1:], dtype=torch.int64)
        for product, place in self._places.items():
            names = [find_name(each, self._names) for each in product.modules]
            own = [changes.get(each) for each in names]
            if any(own):
                change = self._lay_out(product, own)
                packed[place] = change
                lines[place] = torch.tensor(change.make_line(lines.shape[1]))
                self._check(product, own, change, lines[place])
        return PackedAdapter(lines=lines.to(self._device), changes=packed)

    def _check(
        self,
        product: Product | ExpertProduct,
        own: Sequence[LowRank | None],
        change: Change,
        line: Tensor,
    ) -> None:
        """Try the kernels, once for each kind of product; see find_fault."""
        kind: tuple[object, ...]
        if isinstance(product, ExpertProduct):
            weights = product.weights
            kind = weights.codes.shape, weights.format, product.is_first
            find = partial(find_expert_fault, product, self._dtype, self._num_cores)
        else:
            shape, has_bias = product.weight.shape, product.bias is not None
            kind = shape, len(product.modules), has_bias, change.scale is not None
            table = torch.stack((torch.zeros_like(line), line)).to(self._device)
            width = _widen(self._grown.width, [change])
            find = partial(
                find_fault, product, own, partial(self._launch, product, table, width)
            )
        if kind in self._checked:
            return
        fault = find()
        if fault is not None:
            raise AdapterProblem(
                f"the kernels cannot run it: {fault}; start with --kernels torch"
            )
        self._checked.add(kind)

    def _lay_out(
        self, product: Product | ExpertProduct, own: Sequence[LowRank | None]
    ) -> Change:
        """Lay out the matrices for the modules of a product."""
        matrices = [None if each is None else (each.a, each.b) for each in own]
        if isinstance(product, ExpertProduct):
            return lay_out_pairs(matrices, product.order, self._dtype, self._device)
        sizes = [each.out_features for each in product.modules]
        scales = [None if each is None else each.output_scale for each in own]
        scale = None
        if any(each is not None for each in scales):
            parts = [
                torch.ones(size) if each is None else each
                for each, size in zip(scales, sizes)
            ]
            scale = torch.cat(parts)
        dtype = product.weight.dtype
        return lay_out_changes(
            matrices, scale, product.order, sizes, dtype, self._device
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
        num_tokens = count_adapter_tokens(inputs.has_chunks)
        return self._cut(inputs.adapters, inputs.counts, num_tokens)

    def list_slots(self, inputs: StepInputs) -> Numbers:
        """Return the slots of the adapters of tokens, (num_tokens,) int32."""
        slots = [self._slots[number] for number in inputs.adapters]
        return np.array(slots, dtype=np.int32).repeat(inputs.counts)

    def cut(self, inputs: StepInputs) -> AdapterTiles | None:
        """Cut the tokens of a step into tiles; None if no token has an adapter."""
        if not inputs.adapters:
            return None
        tiles, slots = self.list_tiles(inputs), self.list_slots(inputs)
        return _send(inputs, tiles, slots, count_adapter_tokens(inputs.has_chunks))

    def cut_wanted(
        self, inputs: StepInputs, tokens: Sequence[int]
    ) -> AdapterTiles | None:
        """Cut the flat tokens whose logits are wanted in the same way."""
        if not inputs.adapters:
            return None
        ends = [*accumulate(inputs.counts)]
        adapters = [inputs.adapters[bisect_right(ends, token)] for token in tokens]
        num_tokens = count_adapter_tokens(False)
        tiles = self._cut(adapters, [1] * len(adapters), num_tokens)
        slots = np.array([self._slots[number] for number in adapters], dtype=np.int32)
        return _send(inputs, tiles, slots, num_tokens)

    def _cut(
        self, adapters: Sequence[int], counts: Sequence[int], num_tokens: int
    ) -> Numbers:
        runs = [
            (self._slots[number], begin, end)
            for number, begin, end in list_runs(adapters, counts)
        ]
        tiles = np.array(cut_adapters(runs, num_tokens), dtype=np.int32)
        # No tiles have no columns.
        return tiles.reshape(-1, ADAPTER_NUMBERS)

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
        if tiles is None or place not in self._grown.changed:
            return
        if len(tiles.numbers):
            table = self._grown.table[:, place]
            self._launch(product, table, self._grown.width, given, output, tiles)

    def find_changes(
        self, product: ExpertProduct, tiles: AdapterTiles | None
    ) -> PairChanges | None:
        """Return the changes of experts in a step; None if there are none.

        Args:
          tiles: of all tokens; None if none has an adapter
        """
        place = self._places[product]
        if tiles is None or place not in self._grown.changed:
            return None
        assert tiles.slots is not None, "experts read all tokens"
        return PairChanges(
            table=self._grown.table[:, place],
            slots=tiles.slots,
            width=self._grown.width,
            num_cores=self._num_cores,
        )

    def _launch(
        self,
        product: Product,
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
            blocks=self._blocks[product],
            bias=product.bias,
            num_modules=len(product.modules),
            width=width,
            num_cores=self._num_cores,
        )


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


def _send(
    inputs: StepInputs, tiles: Numbers, slots: Numbers, num_tokens: int
) -> AdapterTiles:
    sent = [inputs.numbers.add(each) for each in (tiles, slots)]
    return AdapterTiles(
        numbers=sent[0].get(), slots=sent[1].get(), num_tokens=num_tokens
    )
