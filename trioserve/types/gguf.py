"""The tensors of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor, and its place in the file.

    Args:
      kind: ggml's name of the type, such as Q4_1 or F32.
      shape: as torch writes it: the numbers of a row come last.
      offset: of its first byte in the file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A GGUF file whose header has been read.

    Args:
      architecture: in llama.cpp's spelling.
    """

    path: Path
    architecture: str
    tensors: tuple[GgufTensor, ...]
