"""The tensors of a plain Llama in a folder of safetensors."""

from __future__ import annotations

from collections import Counter
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
import torch
from torch import Tensor, nn
from torch.nn import functional

from .tensors import EMBEDDING, Shapes

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"

# The model's type -> types in files that convert to it without loss, by safetensors' names.
_EXACT = {
    torch.float32: frozenset({"F32", "BF16", "F16"}),
    torch.bfloat16: frozenset({"BF16"}),
}


class SafetensorsTensors:
    """A PlainTensors. The packer widens the numbers of the files to the model's type.

    Args:
      dtype: float32 or bfloat16, of the model's numbers.

    Raises:
      OSError, ValueError, LookupError, SafetensorError: the files cannot be read.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._files: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._paths: dict[str, Path] = {}
        for path in _list_files(folder):
            file: Any = safe_open(path, framework="pt")
            for name in file.keys():
                self._files[name], self._paths[name] = file, path
                self._counts[name] += 1

    def fit(self, shapes: Shapes) -> bool:
        # A tensor in two files would be ambiguous.
        return self._counts == {f"{name}.weight": 1 for name in shapes} and all(
            self._fits(name, shape) for name, shape in shapes.items()
        )

    def find_weights(self, name: str) -> Tensor:
        weights: Tensor = self._files[f"{name}.weight"].get_tensor(f"{name}.weight")
        return weights

    def read_vector(self, name: str) -> Tensor:
        return self.find_weights(name).float()

    def make_embedding(self) -> nn.Module:
        # The file is mapped again: the pages that packing has read would stay part of
        # this process's memory as long as their mapping.
        path = self._paths[f"{EMBEDDING}.weight"]
        with safe_open(path, framework="pt") as file:
            return _Embedding(file.get_tensor(f"{EMBEDDING}.weight"), self._dtype)

    def _fits(self, name: str, shape: tuple[int, ...]) -> bool:
        # This reads the header, not the tensor.
        found = self._files[f"{name}.weight"].get_slice(f"{name}.weight")
        return (
            tuple(found.get_shape()) == shape
            and found.get_dtype() in _EXACT[self._dtype]
        )


class _Embedding(nn.Module):
    """The vectors of tokens, read from a mapped file."""

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self._rows = rows
        self._dtype = dtype

    def forward(self, input_ids: Tensor) -> Tensor:
        return functional.embedding(input_ids, self._rows).to(self._dtype)


def _list_files(folder: Path) -> list[Path]:
    """Return the files that transformers would read."""
    if (folder / _FILE).is_file():
        return [folder / _FILE]
    index = json.loads((folder / _INDEX).read_bytes())
    return [folder / name for name in sorted(set(index["weight_map"].values()))]
