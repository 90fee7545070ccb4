"""Rules from the names of llama.cpp's tensors to transformers' parameters.

llama.cpp gives tensors other names, orders and values than transformers. A rule says how a
tensor becomes a parameter again: the order of its rows and its columns first, which is enough for
blocks that stay as they are, and then its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


class Unreadable(Exception):
    """A file is whole, and is not read nevertheless; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where a tensor goes, and what undoes llama.cpp's change of it.

    Args:
      name: of the parameter, within its layer; of the whole model for tensors outside of
        layers. Empty if no model has it.
      rows: puts the first dimension of any tensor back in order; None leaves it.
      columns: does the same with the columns of a matrix, which are given as rows.
      undo: changes the numbers back, as float32, in the right order; None leaves them. It may
        raise Unreadable.
      part: the place among several tensors of one parameter, joined along the rows.
      join: joins the parts in another way; it moves rows only.
      form: gives the joined numbers transformers' form, such as a transposed one. Kernels
        take the rows without it. It must run on the device `meta`, too.
      is_optional: a model may lack the parameter, and leaves the tensor out then.
    """

    name: str
    rows: Callable[[Tensor], Tensor] | None = None
    columns: Callable[[Tensor], Tensor] | None = None
    undo: Callable[[Tensor], Tensor] | None = None
    part: int = 0
    join: Callable[[Sequence[Tensor]], Tensor] | None = None
    form: Callable[[Tensor], Tensor] | None = None
    is_optional: bool = False

    def restore(self, numbers: Tensor) -> Tensor:
        """Return the numbers as transformers has them."""
        if self.rows is not None:
            numbers = self.rows(numbers)
        if self.columns is not None:
            numbers = self.columns(numbers.T).T
        return numbers if self.undo is None else self.undo(numbers)

    def join_parts(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the rows of a parameter's tensors, which are in the order of their parts."""
        import torch

        if self.join is not None:
            return self.join(parts)
        return parts[0] if len(parts) == 1 else torch.cat([*parts], dim=-2)

    def make_parameter(self, parts: Sequence[Tensor]) -> Tensor:
        """Join the tensors of a parameter, and give them transformers' form."""
        joined = self.join_parts(parts)
        return joined if self.form is None else self.form(joined)


# By llama.cpp's names, without the number of the layer.
Rules: TypeAlias = dict[str, Rule]
