"""Read the weights of a module of sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
import pickle

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch
from torch import Tensor

from ...errors import WeightsBroken


class ModuleWeights:
    """The tensors of a module's folder.

    Args:
      folder: the model's.
      path: the module's folder, relative to that.
      device: where the tensors are needed.

    Raises:
      WeightsBroken: they are missing, or cannot be read.
    """

    def __init__(self, folder: Path, path: str, device: torch.device) -> None:
        self._source = str(folder)
        self._path = path
        self._device = device
        self._tensors = self._read(folder / path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor of a given shape, in float32; None is any size."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise WeightsBroken(self._source, f"{self._path} has no tensor {name}")
        is_as_wanted = tensor.dim() == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, tensor.shape)
        )
        if not is_as_wanted:
            found = "x".join(map(str, tensor.shape))
            wanted_shape = "x".join("any" if n is None else str(n) for n in shape)
            reason = f"{self._path}: {name} is {found}, not {wanted_shape}"
            raise WeightsBroken(self._source, reason)
        return tensor.to(self._device, torch.float32)

    def _read(self, path: Path) -> Mapping[str, Tensor]:
        safe, pickled = path / "model.safetensors", path / "pytorch_model.bin"
        try:
            if safe.is_file():
                return load_file(safe)
            if pickled.is_file():
                return self._read_pickle(pickled)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            raise WeightsBroken(self._source, f"{self._path}: {error}") from error
        reason = f"{self._path} has neither {safe.name} nor {pickled.name}"
        raise WeightsBroken(self._source, reason)

    def _read_pickle(self, path: Path) -> Mapping[str, Tensor]:
        try:
            # With weights_only, the pickle runs no code: it gives tensors or fails.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"{path.name} does not hold tensors alone") from error
        if not isinstance(tensors, dict) or not all(
            isinstance(tensor, Tensor) for tensor in tensors.values()
        ):
            raise ValueError(f"{path.name} does not hold tensors by name")
        return tensors
