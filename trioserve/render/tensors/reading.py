"""Tells the formats apart."""

from __future__ import annotations

from .records import FiledTensor, MalformedTensor
from .safetensors import read_safetensors
from .torch_zip import ZIP_LOCAL_SIGNATURE, read_torch_file


def read_tensor_file(data: memoryview) -> FiledTensor:
    """Find the one tensor that a file holds. Its elements stay where they are.

    Raises:
      MalformedTensor: it is neither of the formats, holds anything else, or lies.
    """
    begin = bytes(data[:9])
    if begin.startswith(ZIP_LOCAL_SIGNATURE):
        return read_torch_file(data)
    if begin[8:] == b"{":
        return read_safetensors(data)
    if begin.startswith(b"\x80"):
        raise MalformedTensor(
            "is a bare pickle; torch.save must write its zip format, its default"
        )
    raise MalformedTensor("is a file neither of torch.save nor of safetensors")
