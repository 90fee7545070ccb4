"""Measures the files of a model's weights, by their headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Final

from ..types.gguf import GgufFile
from ..types.model_info import WeightFiles
from .gguf import read_gguf
from .source import Weights

# Types of numbers whose tensors have one for each parameter, as safetensors names them.
_PLAIN: Final = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def measure_weights(weights: Weights, file: GgufFile | None = None) -> WeightFiles:
    """Return the sizes of a model that has been loaded.

    Args:
      file: the GGUF file of the weights, if it has been read already.
    """
    if weights.gguf is not None:
        tensors = (file or read_gguf(weights.gguf)).tensors
        numbers = Counter[str]()
        for tensor in tensors:
            numbers[tensor.kind] += prod(tensor.shape)
        return _describe("gguf", [weights.gguf], numbers, is_packed=False)
    paths = sorted(weights.folder.glob("*.safetensors"))
    numbers = Counter[str]()
    for path in paths:
        for kind, count in _list_tensors(path):
            numbers[kind] += count
    is_packed = numbers.total() > 0 and numbers.most_common(1)[0][0] not in _PLAIN
    return _describe("safetensors", paths, numbers, is_packed=is_packed)


def _describe(
    form: str, paths: list[Path], numbers: Counter[str], *, is_packed: bool
) -> WeightFiles:
    stats = [path.stat() for path in paths]
    return WeightFiles(
        form=form,
        num_bytes=sum(each.st_size for each in stats),
        num_parameters=0 if is_packed else numbers.total(),
        number_type=numbers.most_common(1)[0][0] if numbers else "",
        changed_at=max((each.st_mtime for each in stats), default=0.0),
    )


def _list_tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the type of each tensor of a file, and the number of its items."""
    # It imports NumPy, which the commands that only list models do without.
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        for name in file.keys():
            tensor = file.get_slice(name)
            yield tensor.get_dtype(), prod(tensor.get_shape())
