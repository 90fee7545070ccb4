"""Read an adapter for the layers of a model."""

from __future__ import annotations

from collections.abc import Callable
import logging
from pathlib import Path
from typing import Any

import torch

from ...errors import InvalidAdapter, WeightsBroken, shorten_message
from ...types.adapter import AdapterFacts, AdapterSource
from ...types.gguf import GgufAdapter
from .config import AdapterProblem
from .description import ReadAdapter
from .gguf import match_gguf
from .part import ModelPart
from .peft import read_peft

logger = logging.getLogger(__name__)

_LONGEST_REASON = 500

# Reads a file that is not larger than a number of bytes; raises WeightsBroken.
ReadGguf = Callable[[Path, int], GgufAdapter]


class AdapterReader:
    """Reads adapters for a model.

    Args:
      part: runs them.
      architecture: the model's class.
      head_dim: of its keys.
      read_gguf: reads a GGUF file; None refuses them.
    """

    def __init__(
        self,
        part: ModelPart,
        *,
        architecture: str,
        head_dim: int,
        read_gguf: ReadGguf | None = None,
    ) -> None:
        self._part = part
        self._architecture = architecture
        self._head_dim = head_dim
        self._read_gguf = read_gguf

    @torch.inference_mode()
    def read(self, source: AdapterSource) -> tuple[AdapterFacts, Any]:
        """Read an adapter, a folder in peft's format or a GGUF file, and pack it.

        Raises:
          InvalidAdapter: its files are wrong, or the layers cannot run it.
        """
        try:
            adapter = self._read(Path(source.path))
            packed = self._part.layers.pack(adapter.changes)
        except AdapterProblem as problem:
            raise InvalidAdapter(source.name, _shorten(str(problem))) from None
        except WeightsBroken as error:
            raise InvalidAdapter(source.name, _shorten(error.reason)) from None
        except torch.OutOfMemoryError:
            reason = "the device has too little memory left for it"
            raise InvalidAdapter(source.name, reason) from None
        except Exception as error:
            # The libraries read files that nobody here wrote. No other request may end by them.
            logger.exception("the adapter %s cannot be read", source.name)
            reason = f"it cannot be read ({shorten_message(error)})"
            raise InvalidAdapter(source.name, reason) from error
        facts = AdapterFacts(
            number=source.number,
            name=source.name,
            digest=adapter.digest,
            rank=max((each.rank for each in adapter.changes.values()), default=0),
            num_bytes=sum(each.num_bytes for each in adapter.changes.values()),
            unmatched=adapter.unmatched,
        )
        return facts, packed

    def _read(self, path: Path) -> ReadAdapter:
        max_bytes = _find_max_bytes(self._part)
        if path.suffix != ".gguf":
            return read_peft(path, self._part, max_bytes)
        if self._read_gguf is None:
            raise AdapterProblem("GGUF files are not read here")
        adapter = self._read_gguf(path, max_bytes)
        return match_gguf(
            adapter,
            self._part,
            architecture=self._architecture,
            head_dim=self._head_dim,
        )


def _shorten(reason: str) -> str:
    """Cut a reason: the names of tensors have no limit."""
    end = "..." if len(reason) > _LONGEST_REASON else ""
    return f"{reason[:_LONGEST_REASON]}{end}"


def _find_max_bytes(part: ModelPart) -> int:
    """Return a size that no adapter of a model has: more than the model's own."""
    numbers = sum(outputs * inputs for outputs, inputs in part.shapes.values())
    ranks = sum(outputs + inputs for outputs, inputs in part.shapes.values())
    # Small models may have adapters of a rank above their own sizes.
    return 8 * max(numbers, 512 * ranks) + 2**20
