"""Options of a server with several models."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import FilePath, Size, check_seconds, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsConfig:
    """Several models behind one address.

    Args:
      models: TOML file with a table of options for each model, or a folder of models. Its
        keys are the names for clients. In a folder, each folder with a config.json and
        each .gguf file is a model.
      memory: Memory that all models may hold together, as 12GiB. Of a model on a CPU, the
        resident memory of its process counts, and all of its KV cache; of a model on a
        GPU, the memory that PyTorch has reserved. Models that are not used leave when
        others need their memory. By default no model has to leave.
      min_residence: Shortest time for which a loaded model stays, in seconds; a model that
        others need sooner would be loaded again and again. After that time, and when the
        others have waited for as long, a model that is used takes no more requests until
        they have had their turn.
      preload: Load models at the start, as many as fit into --memory. By default a model is
        loaded by its first request. A table of --models may have a preload of its own.
    """

    models: FilePath | None = None
    memory: Size | None = None
    min_residence: float = 10.0
    preload: bool = False

    def __post_init__(self) -> None:
        check_seconds("min_residence", self.min_residence, may_be_zero=True)
        _ = self.budget

    @property
    def budget(self) -> int | None:
        """The bytes that all models may hold; None for no limit."""
        return None if self.memory is None else parse_bytes("memory", self.memory)
