"""The files of an adapter, read whole: somebody may be writing them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
import torch
from torch import Tensor

from .config import AdapterProblem

_DIGEST_BYTES = 16
_NUMBERS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_MAX_CONFIG_BYTES = 2**20
# The header of a safetensors file begins with its length.
_LENGTH_BYTES = 8
_MOST_TENSORS = 2**17


def read_file(path: Path, folder: Path, max_bytes: int) -> bytes:
    """Read a file of an adapter's folder.

    Raises:
      AdapterProblem: it is missing, too large, or not a file of the folder.
    """
    try:
        real = path.resolve(strict=True)
        if not any(real.is_relative_to(each) for each in _list_homes(folder)):
            raise AdapterProblem(f"{path.name} is a link out of its folder")
        # A pipe would never end.
        if not real.is_file():
            raise AdapterProblem(f"{path.name} is not a file")
        with real.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise AdapterProblem(f"cannot read {path.name}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise AdapterProblem(f"{path.name} has more than {max_bytes} bytes")
    return data


def read_config_file(path: Path, folder: Path) -> bytes:
    """Read a small file."""
    return read_file(path, folder, _MAX_CONFIG_BYTES)


def load_tensors(data: bytes, name: str) -> dict[str, Tensor]:
    """Decode the content of a safetensors file; its numbers become float32.

    Raises:
      AdapterProblem: it is damaged, or a tensor has no numbers, or not finite ones.
    """
    _check_header(data, name)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterProblem(f"{name} is damaged: {error}") from None
    return {key: check_numbers(key, tensor) for key, tensor in tensors.items()}


def _check_header(data: bytes, name: str) -> None:
    """Refuse more tensors than an adapter of 256 experts in each of 64 layers has.

    The library decodes a header in one call, in which no other thread runs: a million tensors
    took seconds. Each has an object of its own.
    """
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if end <= len(data) and data.count(b"{", _LENGTH_BYTES, end) > _MOST_TENSORS:
        raise AdapterProblem(f"{name} has more than {_MOST_TENSORS} tensors")


def check_numbers(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as float32.

    Raises:
      AdapterProblem: its numbers are of another kind, or not finite.
    """
    if tensor.dtype not in _NUMBERS:
        raise AdapterProblem(
            f"the tensor {name} has numbers of the type {tensor.dtype}"
        )
    numbers = tensor.to(torch.float32)
    if not numbers.isfinite().all():
        raise AdapterProblem(f"the tensor {name} has numbers that are not finite")
    return numbers


def take_tensor(
    tensors: Mapping[str, Tensor], module: str, kind: str, shape: tuple[int, ...]
) -> Tensor:
    """Return a tensor of a module.

    Args:
      tensors: of the module, by their kinds.

    Raises:
      AdapterProblem: it is missing, or has another shape.
    """
    tensor = tensors.get(kind)
    if tensor is None:
        raise AdapterProblem(f"the tensor {module}.{kind} is missing")
    if tuple(tensor.shape) != shape:
        raise AdapterProblem(
            f"the tensor {module}.{kind} has the shape {tuple(tensor.shape)}; the model "
            f"and adapter_config.json need {shape}"
        )
    return tensor


def digest(*contents: bytes) -> bytes:
    """Return a hash of the contents of files."""
    hashed = blake2b(digest_size=_DIGEST_BYTES)
    for content in contents:
        hashed.update(len(content).to_bytes(8, "big"))
        hashed.update(content)
    return hashed.digest()


def _list_homes(folder: Path) -> list[Path]:
    """Return the folders in which the files of an adapter may lie."""
    real = folder.resolve()
    # In the cache of huggingface_hub, a snapshot is a folder of links to blobs.
    if real.parent.name == "snapshots":
        return [real, real.parent.parent / "blobs"]
    return [real]
