"""Read an adapter for the layers of a model."""

from __future__ import annotations

from pathlib import Path

import torch

from ...errors import InvalidAdapter
from ...types.adapter import AdapterFacts, AdapterSource
from .config import AdapterProblem
from .description import Changes, LayerAdapters
from .peft import read_peft


@torch.inference_mode()
def read_adapter(
    source: AdapterSource, layers: LayerAdapters
) -> tuple[AdapterFacts, Changes]:
    """Read an adapter: a folder in peft's format, or a GGUF file.

    Args:
      layers: those that will run it.

    Raises:
      InvalidAdapter: its files are wrong, or the layers cannot run it.
    """
    try:
        changes, digest = read_peft(Path(source.path), layers)
    except AdapterProblem as problem:
        raise InvalidAdapter(source.name, str(problem)) from None
    facts = AdapterFacts(
        number=source.number,
        name=source.name,
        digest=digest,
        rank=max(each.rank for each in changes.values()),
        num_bytes=sum(each.num_bytes for each in changes.values()),
    )
    return facts, changes
