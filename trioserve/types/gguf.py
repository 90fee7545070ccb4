"""The tensors of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .gguf_rules import Rule, Rules, Unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float32]

_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")


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
class GgufPart:
    """A tensor that is a parameter, or a part of one."""

    tensor: GgufTensor
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A GGUF file whose header has been read.

    Args:
      architecture: in llama.cpp's spelling.
      make_rules: returns the rules of its tensors, from the model's configuration; None if
        transformers' reader has them.
    """

    path: Path
    architecture: str
    tensors: tuple[GgufTensor, ...]
    make_rules: Callable[[Any], Rules] | None = None

    def list_parts(self, config: Any) -> dict[str, list[GgufPart]]:
        """Return the tensors of each parameter, by transformers' names, in order.

        Tensors that no model has are under the empty name.

        Args:
          config: of the model.

        Raises:
          Unreadable: no rule has the name of a tensor.
        """
        assert self.make_rules is not None, "the file has rules"
        rules, num_layers = self.make_rules(config), int(config.num_hidden_layers)
        found: dict[str, list[GgufPart]] = {}
        for tensor in self.tensors:
            match = _LAYER.fullmatch(tensor.name)
            number, short = (int(match[1]), match[2]) if match else (None, tensor.name)
            # Blocks behind the last layer predict several tokens at once.
            if number is not None and number >= num_layers:
                continue
            rule = rules.get(short)
            if rule is None:
                raise Unreadable(f"the tensor {tensor.name} is not known")
            layer = "" if number is None else f"model.layers.{number}."
            name = f"{layer}{rule.name}" if rule.name else ""
            found.setdefault(name, []).append(GgufPart(tensor=tensor, rule=rule))
        for parts in found.values():
            parts.sort(key=lambda part: part.rule.part)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufAdapter:
    """The content of a GGUF file with a LoRA adapter.

    Args:
      architecture: of its model, in llama.cpp's spelling.
      digest: of the file.
      tensors: matrices, by llama.cpp's names.
    """

    architecture: str
    alpha: float
    digest: bytes
    tensors: Mapping[str, Numbers]
