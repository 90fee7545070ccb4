"""The adapters of a configuration, which are loaded before anything is served."""

from __future__ import annotations

from ..config import ModelConfig
from ..errors import AdapterRefused, InvalidAdapter, InvalidConfig
from .loaded import LoadedCore


async def load_adapters(loaded: LoadedCore, config: ModelConfig) -> None:
    """Load the adapters of a configuration.

    Args:
      loaded: a core of this process, which runs.

    Raises:
      InvalidConfig: one cannot be loaded.
    """
    for name, path in config.list_adapters():
        try:
            await loaded.core.adapters.load(name, path)
        except (InvalidAdapter, AdapterRefused) as error:
            raise InvalidConfig("adapter", f"{name}={path}: {error.reason}") from None
