"""Tensors as bytes, for rooms that do not import torch."""

from __future__ import annotations


class TensorBytes:
    """The bytes of a tensor, with its type and shape.

    It is not a dataclass, because msgspec would encode a dataclass as part of its
    message. Between processes, the bytes are sent separately (processes/messages.py).

    Args:
      data: its elements in C order and the machine's byte order.
      dtype: torch's name of the type, such as "bfloat16".
      shape: its product times the type's bytes is the length of `data`.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(
        self,
        *,
        data: bytes | bytearray | memoryview,
        dtype: str,
        shape: tuple[int, ...],
    ) -> None:
        self.data = data
        self.dtype = dtype
        self.shape = shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorBytes) and (
            (self.data, self.dtype, self.shape)
            == (other.data, other.dtype, other.shape)
        )

    def __repr__(self) -> str:
        return f"TensorBytes({self.dtype}, {self.shape})"
