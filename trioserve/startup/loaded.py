"""A core whose model is loaded, and the fingerprint of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..config import ModelConfig
from ..types.model_info import ModelInfo
from ..types.pooling import PoolingInfo
from ..types.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCore:
    """A core whose model is loaded, in this process or in another.

    Args:
      core: an engine.PoolingCore if `pooling` is given, else an engine.GenerationCore.
    """

    core: Any
    info: ModelInfo
    pooling: PoolingInfo | None = None


def add_names(info: ModelInfo, config: ModelConfig) -> ModelInfo:
    """Add the names that clients may use; without others the model keeps its own."""
    name, *others = config.served_model_name or (info.name,)
    return replace(info, name=name, other_names=tuple(others), source=config.model)


def fingerprint_model(folder: Path, *numbers: str) -> str:
    """Return a name that changes if the same request may get another answer.

    It depends on the version of the code and the model's files.

    Args:
      numbers: the types of numbers, and the kernels.
    """
    parts = blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        # The size stands for the content: weights are gigabytes.
        if path.is_file():
            parts.update(f"{path.name}:{path.stat().st_size};".encode())
    parts.update(";".join([__version__, *numbers]).encode())
    return f"fp_{parts.hexdigest()}"
