"""Reads a GGUF file with a LoRA adapter, as llama.cpp's convert_lora_to_gguf writes it."""

from __future__ import annotations

from hashlib import blake2b
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..errors import WeightsBroken
from ..types.gguf import GgufAdapter, GgufTensor
from .gguf_header import GgufHeader, read_header

if TYPE_CHECKING:
    from ..types.gguf import Numbers

_ALORA = "adapter.alora.invocation_tokens"


def read_gguf_adapter(path: Path, max_bytes: int) -> GgufAdapter:
    """Read an adapter.

    Args:
      max_bytes: a larger file is refused.

    Raises:
      WeightsBroken: the file is missing, damaged, too large, or holds something else.
    """
    source = path.name
    try:
        if not path.is_file():
            raise WeightsBroken(source, "there is no such file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise WeightsBroken(source, f"{error.strerror or error}") from None
    if len(data) > max_bytes:
        raise WeightsBroken(source, f"it has more than {max_bytes} bytes")
    # A copy, because somebody may be writing the file, and its header is read by mapping it.
    with TemporaryDirectory() as folder:
        copy = Path(folder) / source
        copy.write_bytes(data)
        header = read_header(copy, source)
    _check(header, source)
    return GgufAdapter(
        architecture=header.file.architecture,
        alpha=_read_alpha(header, source),
        digest=blake2b(data, digest_size=16).digest(),
        tensors={
            tensor.name: _read(tensor, data, source) for tensor in header.file.tensors
        },
    )


def _check(header: GgufHeader, source: str) -> None:
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if header.get_text(key) != wanted:
            raise WeightsBroken(source, f"its {key} is not {wanted!r}")
    if _ALORA in header.entries:
        raise WeightsBroken(source, f"{_ALORA} is not supported")
    if len({tensor.name for tensor in header.file.tensors}) < len(header.file.tensors):
        raise WeightsBroken(source, "two of its tensors have one name")


def _read_alpha(header: GgufHeader, source: str) -> float:
    entry = header.entries.get("adapter.lora.alpha")
    alpha = None if entry is None else entry.value
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise WeightsBroken(source, "its adapter.lora.alpha is not a finite number")
    return float(alpha)


def _read(tensor: GgufTensor, data: bytes, source: str) -> Numbers:
    """Return the numbers of a tensor."""
    # Imported here, because models without GGUF files do not need them.
    from gguf import GGMLQuantizationType, dequantize
    import numpy as np

    blocks = np.frombuffer(data, np.uint8, tensor.num_bytes, tensor.offset)
    if len(tensor.shape) != 2:
        raise WeightsBroken(source, f"{tensor.name} is not a matrix")
    rows = blocks.reshape(tensor.shape[0], -1)
    try:
        numbers = dequantize(rows, GGMLQuantizationType[tensor.kind])
    except (NotImplementedError, ValueError) as error:
        raise WeightsBroken(source, f"{tensor.name}: {error}") from None
    return np.array(numbers, dtype=np.float32)
