"""The matrices of an adapter, and the protocol of layers that run adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The change of one product.

        outputs = output_scale * (weight @ inputs + b @ a @ inputs) + bias

    Args:
      a: (rank, num_inputs) float32
      b: (num_outputs, rank) float32, with the adapter's scale
      output_scale: (num_outputs,) float32, of DoRA; None without it
    """

    a: Tensor
    b: Tensor
    output_scale: Tensor | None = None

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def num_bytes(self) -> int:
        scale = 0 if self.output_scale is None else self.output_scale.nbytes
        return self.a.nbytes + self.b.nbytes + scale


# The changes of an adapter, by the names of the model's products, as LayerAdapters has them.
Changes = Mapping[str, LowRank]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAdapter:
    """The content of an adapter.

    Args:
      digest: of its files.
      unmatched: see AdapterFacts.
    """

    changes: Changes
    digest: bytes
    unmatched: tuple[str, ...] = ()


class LayerAdapters(Protocol):
    """The adapters that the layers of a model run.

    StepInputs.adapters has the number of each row's adapter.

    Attributes:
      shapes: (num_outputs, num_inputs) of the products that adapters may change, by
        transformers' names of their modules, such as "model.layers.0.self_attn.q_proj";
        name_expert (products.py) names those of experts.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, int]]: ...

    def read(self, name: str) -> Tensor:
        """Return a copy of a product's weight, (num_outputs, num_inputs) float32.

        It may be called in any thread, while steps run.
        """

    def pack(self, changes: Changes) -> Any:
        """Return an adapter as `add` takes it; in any thread, while steps run.

        Raises:
          AdapterProblem: the layers cannot run it.
        """

    def add(self, number: int, packed: Any) -> None:
        """Let later steps use an adapter; between two steps."""

    def remove(self, number: int) -> None:
        """Forget an adapter; between two steps."""
