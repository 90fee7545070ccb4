"""The tensors of a GGUF file by the names of transformers' parameters."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ...runtimes.native.packer import Rows


class GgufSource(Protocol):
    """The tensors of a file; methods raise NotRecognised for a parameter that is not there."""

    def has(self, name: str) -> bool:
        """Return whether the file has a parameter."""

    def find_rows(self, name: str, parameter: Tensor) -> Rows:
        """Return a parameter in the blocks of the file; experts follow each other.

        Args:
          parameter: has its shape.
        """

    def read_numbers(self, name: str, parameter: Tensor) -> Tensor:
        """Return a parameter as float32, in the form that transformers wants."""

    def read_rotary_factors(self) -> Tensor | None:
        """Return divisors of the frequencies of rotary angles, if the file has them."""

    def check_used(self) -> None:
        """Refuse a file with a tensor that the model does not have."""
