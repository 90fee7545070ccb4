"""Recognises the format of a tensor's file."""

from __future__ import annotations

from .records import FiledTensor, MalformedTensor
from .safetensors import read_safetensors
from .torch_zip import ZIP_LOCAL_SIGNATURE, read_torch_file


def read_tensor_file(data: memoryview) -> FiledTensor:
    """Find the one tensor in a file. Its elements are not copied.

    Raises:
      MalformedTensor: the file has another format, another content, or is inconsistent.
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
