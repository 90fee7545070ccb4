"""The number of KV blocks that fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import resource

import torch

from ...config import CacheConfig, ModelConfig, parse_bytes
from ...errors import InvalidConfig
from ...types.windows import CacheBlocks, WindowLayers
from .cache_division import CacheDivision
from .probe import LayerSpec

# A smaller cache would refuse every chat: a template and a question take a few hundred
# tokens, and the answer needs room, too.
_MIN_TOKENS = 512

# A float32 for the keys of a token and a head, and one for the values.
_SCALE_BYTES = 4

# The server has a GPU for itself, but shares a CPU's memory with other programs and with
# the page cache.
_FRACTION_OF_GPU_MEMORY = 0.9
_FRACTION_OF_CPU_MEMORY = 0.25

_CGROUP = Path("/sys/fs/cgroup")


def choose_kv_dtype(config: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the type of the numbers in the KV cache.

    Args:
      dtype: the model's.
    """
    return torch.int8 if config.kv_cache_dtype == "int8" else dtype


def count_kv_bytes(layers: Sequence[LayerSpec], kv_dtype: torch.dtype) -> int:
    """Return the bytes that all layers keep for one token.

    Args:
      kv_dtype: of the numbers in the cache; those of int8 have scales.
    """
    scale_bytes = _SCALE_BYTES if kv_dtype == torch.int8 else 0
    return sum(
        layer.num_kv_heads
        * (layer.kept_dim * kv_dtype.itemsize + layer.num_sides * scale_bytes)
        for layer in layers
        if layer.shares is None
    )


def count_fitting_states(
    state_bytes: int,
    config: CacheConfig,
    *,
    max_num_seqs: int,
    device: torch.device,
    num_sharing: int = 1,
) -> int:
    """Return the number of sequences whose states take at most half of the memory.

    Keys and values get the other half.

    Args:
      state_bytes: states of a sequence in all layers.
      max_num_seqs: the most that are wanted.
      num_sharing: processes that share a CPU's memory.
    """
    if not state_bytes:
        return max_num_seqs
    memory_bytes, _ = _share_memory(config, device, num_sharing)
    num_states = memory_bytes // 2 // state_bytes
    each = 1 + config.count_checkpoints(1)
    return max(1, min(max_num_seqs, (num_states - 1) // each))


def _count_states(max_num_seqs: int, config: CacheConfig) -> int:
    """Return the number of all states: of sequences, of copies, and of no sequence."""
    return max_num_seqs + config.count_checkpoints(max_num_seqs) + 1


def count_fitting_blocks(
    kv_bytes_per_token: int,
    config: CacheConfig,
    *,
    windows: WindowLayers | None = None,
    max_chunk: int = 0,
    state_bytes: int = 0,
    max_num_seqs: int,
    max_model_len: int,
    wanted_len: int | None = None,
    device: torch.device,
    num_sharing: int = 1,
    step_bytes: int = 0,
) -> CacheBlocks:
    """Return the number of KV blocks for a ModelRunner: all that fit, if they can be used.

    They may be too few for a sequence of `max_model_len` tokens. Then the caller lowers
    max_model_len to num_blocks * block_size.

    Args:
      kv_bytes_per_token: keys and values of all layers.
      windows: the layers with windows among them.
      max_chunk: tokens of a sequence in one step.
      state_bytes: states of a sequence in all layers, which take their room first.
      wanted_len: tokens of a sequence for which window blocks make room, if an option asks
        for it.
      num_sharing: processes that share a CPU's memory.
      step_bytes: part of --kv-cache-fraction that steps need themselves.

    Raises:
      InvalidConfig: the memory does not hold one sequence of 512 tokens, or of fewer if
        the model takes no more.
    """
    division = CacheDivision(
        kv_bytes_per_token,
        config.block_size,
        windows=windows,
        max_chunk=max_chunk,
        max_model_len=max_model_len,
    )
    memory_bytes, field = _share_memory(config, device, num_sharing)
    beside = ""
    if state_bytes:
        all_states = state_bytes * _count_states(max_num_seqs, config)
        memory_bytes = max(0, memory_bytes - all_states)
        beside = f" (the states of sequences take {_format_bytes(all_states)} now)"
    if field == "kv_cache_fraction" and step_bytes:
        memory_bytes = max(0, memory_bytes - step_bytes)
        beside += (
            f" (steps need {_format_bytes(step_bytes)} more; fewer "
            "--max-num-batched-tokens or --max-num-seqs need less)"
        )
    enough = max_num_seqs * division.longest
    if not kv_bytes_per_token:
        # All layers here keep states alone.
        return CacheBlocks(num_blocks=enough)
    num_blocks = division.count_longest(memory_bytes)
    num_tokens = min(_MIN_TOKENS, max_model_len)
    least = -(-num_tokens // config.block_size)
    if num_blocks < least:
        wanted = division.count_bytes(least)
        if state_bytes:
            # States take at most half, but at least as much as one sequence needs.
            one = state_bytes * _count_states(1, config)
            wanted = max(2 * wanted, wanted + one)
        raise InvalidConfig(
            field,
            f"{memory_bytes} bytes hold the keys and values of "
            f"{num_blocks * config.block_size} tokens, but at least {num_tokens} must "
            f"fit: give {_format_bytes(wanted)} or more by "
            f"--kv-cache-memory{beside}",
        )
    return division.divide(memory_bytes, enough, wanted_len)


def _format_bytes(size: int) -> str:
    """Write a size in the form of options, rounded up."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        # Numbers of one digit would be rounded too much: up to twice the size.
        if size >= 10 << power:
            return f"{-(-size >> power)}{unit}"
    return f"{size} bytes"


def _share_memory(
    config: CacheConfig, device: torch.device, num_sharing: int
) -> tuple[int, str]:
    """Return the bytes of this process's cache, and the option that sets them."""
    memory_bytes, field = _resolve_memory(config, device)
    if field == "kv_cache_fraction" and device.type == "cpu":
        memory_bytes //= num_sharing
    return memory_bytes, field


def _resolve_memory(config: CacheConfig, device: torch.device) -> tuple[int, str]:
    """Return the bytes of the cache, and the option that sets them."""
    if config.kv_cache_memory is not None:
        wanted = parse_bytes("kv_cache_memory", config.kv_cache_memory)
        free = find_free_memory(device)
        if wanted > free:
            raise InvalidConfig(
                "kv_cache_memory",
                f"{config.kv_cache_memory} is more than the {free / 2**30:.1f} GiB that "
                f"are free on {device}",
            )
        return wanted, "kv_cache_memory"
    fraction = config.kv_cache_fraction
    if fraction is None:
        is_cpu = device.type == "cpu"
        fraction = _FRACTION_OF_CPU_MEMORY if is_cpu else _FRACTION_OF_GPU_MEMORY
    return int(find_free_memory(device) * fraction), "kv_cache_fraction"


def find_free_memory(device: torch.device) -> int:
    """Return the bytes of a device's memory that this process may still take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    headrooms = (_find_cgroup_headroom(), _find_address_headroom())
    limits = [headroom for headroom in headrooms if headroom is not None]
    return min([_find_available_memory(), *limits])


def find_whole_memory(device: torch.device) -> int:
    """Return the bytes that this process can have if it is alone, with bytes on disk."""
    if device.type == "cuda":
        _, whole = torch.cuda.mem_get_info(device)
        return whole
    whole = _read_memory("MemTotal") + _read_memory("SwapTotal")
    address_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_limit != resource.RLIM_INFINITY:
        whole = min(whole, address_limit)
    try:
        limit = int((_CGROUP / "memory.max").read_text())
    except (OSError, ValueError):
        return whole
    # Limits of memory on disk are seldom set, and count apart.
    return min(whole, limit + _read_memory("SwapTotal"))


def _find_available_memory() -> int:
    """Return the bytes that are free without swapping, by the kernel's estimate."""
    return _read_memory("MemAvailable")


def _read_memory(name: str) -> int:
    """Return a line of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise InvalidConfig(
        "kv_cache_memory",
        "must be given: the system does not tell how much memory is free",
    )


def _find_cgroup_headroom() -> int | None:
    """Return the bytes below the container's limit (cgroup version 2)."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        # There is no cgroup version 2, or the limit is `max`.
        return None
    return max(0, limit - used)


def _find_address_headroom() -> int | None:
    """Return the bytes below the limit of the address space (ulimit -v)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - num_pages * resource.getpagesize())
