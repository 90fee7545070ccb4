"""The part of an adapter for the part of a model that a process has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..shards.cuts import Cut
from .config import AdapterProblem
from .description import LayerAdapters, LowRank
from .products import split_expert


class ModelPart:
    """The products of a model that are here, with their whole shapes.

    Args:
      layers: those that run adapters here.
      cuts: of their weights, (num_outputs, num_inputs), if other processes have the rest; those
        of experts by the names of the weights of all.
      has_all: no other stage has other products.

    Attributes:
      shapes: (num_outputs, num_inputs) of the whole products, by their names.
    """

    def __init__(
        self, layers: LayerAdapters, cuts: Mapping[str, Cut], *, has_all: bool
    ) -> None:
        self.layers = layers
        self.has_all = has_all
        self._cuts = cuts
        self.shapes = {
            name: self._widen(name, shape) for name, shape in layers.shapes.items()
        }

    def take(self, name: str, change: LowRank) -> LowRank:
        """Return the change of the part of a product.

        Raises:
          AdapterProblem: the others would have to be asked.
        """
        cut = self._find_cut(name)
        if cut is None:
            return change
        if cut.axis == -2:
            scale = change.output_scale
            if scale is not None:
                scale = cut.take(name, scale[:, None])[:, 0]
            return replace(change, b=cut.take(name, change.b), output_scale=scale)
        if change.output_scale is not None:
            raise AdapterProblem(
                f"use_dora is not supported for {name}, whose inputs several processes "
                "share (--tensor-parallel-size)"
            )
        return replace(change, a=cut.take(name, change.a))

    def refuse_unknown(self, tensor: str) -> None:
        """Refuse a tensor that belongs to no product here, if there are no others."""
        if self.has_all:
            raise AdapterProblem(describe_unknown(tensor))

    def _widen(self, name: str, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the whole of a product."""
        cut = self._find_cut(name)
        if cut is None:
            return shape
        size = cut.size * cut.num_parts
        return (size, shape[1]) if cut.axis == -2 else (shape[0], size)

    def _find_cut(self, name: str) -> Cut | None:
        if (expert := split_expert(name)) is not None:
            name = f"{expert[0]}.{expert[2]}"
        return self._cuts.get(name)


def describe_unknown(tensor: str) -> str:
    """Return why an adapter with a tensor is refused."""
    return f"the tensor {tensor} belongs to no module that adapters may change"
