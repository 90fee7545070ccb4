"""The weights of a folder, each dequantised when it is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

from safetensors import safe_open
import torch
from torch import Tensor

from ....kernels.stored import NotStored, StoredWeights
from .formats import WeightFormat
from .restore import WrongParts

Made = TypeVar("Made")


class QuantisedWeight:
    """One weight, for transformers in place of a slice of a file.

    Args:
      name: its own, for errors.
      parts: slices of its tensors, by the last part of their names.
      dtype: of the dequantised weight.
    """

    def __init__(
        self,
        name: str,
        form: WeightFormat,
        parts: Mapping[str, Any],
        dtype: torch.dtype,
    ) -> None:
        self._name = name
        self._form = form
        self._parts = parts
        self._dtype = dtype

    def __getitem__(self, index: EllipsisType) -> Tensor:
        parts = {name: part[...] for name, part in self._parts.items()}
        return self._run(self._form.restore, parts).to(self._dtype)

    def keep(self, device: torch.device) -> StoredWeights:
        """Return the weight as kernels read it, on its device.

        Raises:
          NotStored: they cannot.
        """
        if self._form.keep is None:
            raise NotStored("a kind of numbers that the kernels do not read")
        parts = {name: part[...].to(device) for name, part in self._parts.items()}
        return self._run(self._form.keep, parts)

    def _run(
        self, function: Callable[[Mapping[str, Tensor]], Made], parts: dict[str, Tensor]
    ) -> Made:
        try:
            return function(parts)
        except NotStored:
            raise
        except (ValueError, LookupError, RuntimeError) as error:
            raise WrongParts(f"{self._name}: {error}") from error


@contextmanager
def open_tensors(
    folder: Path, formats: tuple[WeightFormat, ...], dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """Open the safetensors of a folder.

    Args:
      formats: of quantised weights; other tensors stay as they are.
      dtype: of dequantised weights.

    Returns:
      sliceable sources of tensors, by name

    Raises:
      OSError, SafetensorError: a file cannot be read.
    """
    with ExitStack() as files:
        modules: dict[str, dict[str, Any]] = defaultdict(dict)
        for path in sorted(folder.glob("*.safetensors")):
            # A process that maps a file needs no memory for it.
            file: Any = files.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():
                module, last = _split(name)
                modules[module][last] = file.get_slice(name)
        yield dict(_join(modules, formats, dtype))


def _split(name: str) -> tuple[str, str]:
    """Return the names of a module and of one of its tensors."""
    module, dot, last = name.partition(".weight.")
    if dot:
        # What bitsandbytes keeps beside a weight, such as weight.absmax.
        return module, f"weight.{last}"
    module, _, last = name.rpartition(".")
    return module, last


def _join(
    modules: Mapping[str, Mapping[str, Any]],
    formats: tuple[WeightFormat, ...],
    dtype: torch.dtype,
) -> Iterator[tuple[str, Any]]:
    for module, tensors in modules.items():
        start = module + "." if module else ""
        # The first format that fits, of each weight.
        fitting = [
            form for form in reversed(formats) if form.required <= tensors.keys()
        ]
        taken: set[str] = set()
        for name, form in {each.name: each for each in fitting}.items():
            parts = {part: tensors[part] for part in form.names & tensors.keys()}
            yield start + name, QuantisedWeight(start + name, form, parts, dtype)
            taken |= form.names
        for name, tensor in tensors.items():
            if name not in taken:
                yield start + name, tensor
