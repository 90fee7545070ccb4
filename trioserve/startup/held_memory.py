"""The memory that a loaded model holds, and an estimate before it is loaded."""

from __future__ import annotations

from pathlib import Path
import resource
import sys
from typing import Final

from ..config import EngineConfig, parse_bytes
from ..types.model_info import ModelInfo
from ..weights import find_local

# Of a kibibyte in Linux, and of a byte in macOS.
_UNIT: Final = 1 if sys.platform == "darwin" else 1024

# The least that an engine process holds for libraries.
_PROCESS_BYTES: Final = 256 * 2**20


def measure_held(info: ModelInfo) -> int:
    """Return the bytes that this process holds for its model, with a full cache.

    The cache of a CPU takes no memory until it is used, so it is added. On a GPU all of it
    is among the bytes that torch has reserved.
    """
    return measure_present() + (info.cache_bytes if info.device_type == "cpu" else 0)


def measure_present() -> int:
    """Return the bytes that this process holds now: on its GPU, if it uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        reserved: int = torch.cuda.memory_reserved()
        return reserved
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        # The most that it ever was.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
    return pages * resource.getpagesize()


def estimate_held(config: EngineConfig, budget: int | None, *, process: bool) -> int:
    """Return about the bytes that a model will hold.

    Args:
      process: its engine gets a process of its own, which holds libraries, too.
      budget: of all models. More than that is returned if the weights alone are larger:
        only the load tells how much of the KV cache a model can use.
    """
    num_bytes = sum(each.stat().st_size for each in _list_weights(config.model.model))
    if config.model.quantization != "none":
        # Weights have at least two bytes in files that are quantised by the load.
        num_bytes //= 2
    whole = num_bytes
    if config.cache.kv_cache_memory is not None:
        whole += parse_bytes("kv_cache_memory", config.cache.kv_cache_memory)
    if process and not config.model.device.startswith("cuda"):
        whole += _PROCESS_BYTES
    return whole if budget is None else max(num_bytes, min(whole, budget))


def _list_weights(source: str) -> list[Path]:
    """Return the files of a model's weights, if they are on this machine."""
    found = find_local(source)
    if found is None:
        return []
    if not isinstance(found, Path):
        return [found.file.path]
    # A model that was converted has both.
    return list(found.glob("*.gguf")) or list(found.glob("*.safetensors"))
