"""How many KV blocks fit into memory."""

from __future__ import annotations

from pathlib import Path
import resource

import torch

from ...config import CacheConfig, parse_bytes
from ...errors import InvalidConfig
from .probe import LayerSpec

# A cache that holds less refuses every chat: a template and a question are a few hundred
# tokens, and the answer goes in with them.
_MIN_TOKENS = 512

# A GPU is the server's own; a CPU's memory is shared with the page cache and others.
_FRACTION_OF_GPU_MEMORY = 0.9
_FRACTION_OF_CPU_MEMORY = 0.25


def count_kv_bytes(layers: tuple[LayerSpec, ...], dtype: torch.dtype) -> int:
    """Bytes of keys and values that all layers keep for one token."""
    return dtype.itemsize * sum(
        layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layers
    )


def count_fitting_blocks(
    kv_bytes_per_token: int,
    config: CacheConfig,
    *,
    max_num_seqs: int,
    max_model_len: int,
    device: torch.device,
    num_sharing: int = 1,
) -> int:
    """How many blocks to allocate: what fits, but no more than could be used.

    Raises:
      InvalidConfig: the memory does not hold one sequence of 512 tokens, or of as many
        as the model takes.
    """
    block_bytes = kv_bytes_per_token * config.block_size
    memory_bytes, field = _resolve_memory(config, device)
    if field == "kv_cache_fraction" and device.type == "cpu":
        memory_bytes //= num_sharing
    num_blocks = memory_bytes // block_bytes
    num_tokens = min(_MIN_TOKENS, max_model_len)
    least = -(-num_tokens // config.block_size)
    if num_blocks < least:
        raise InvalidConfig(
            field,
            f"{memory_bytes} bytes hold the keys and values of "
            f"{num_blocks * config.block_size} tokens, but at least {num_tokens} must "
            f"fit: give {_format_bytes(least * block_bytes)} or more by "
            "--kv-cache-memory",
        )
    return min(num_blocks, max_num_seqs * -(-max_model_len // config.block_size))


def _format_bytes(size: int) -> str:
    """Write a size as options take it, rounded up."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        # Whole numbers of two digits at least, or rounding would double some sizes.
        if size >= 10 << power:
            return f"{-(-size >> power)}{unit}"
    return f"{size} bytes"


def _resolve_memory(config: CacheConfig, device: torch.device) -> tuple[int, str]:
    """Return the cache's bytes, and the option that would change them."""
    if config.kv_cache_memory is not None:
        asked = parse_bytes("kv_cache_memory", config.kv_cache_memory)
        free = _find_free_memory(device)
        if asked > free:
            raise InvalidConfig(
                "kv_cache_memory",
                f"{config.kv_cache_memory} is more than the {free} bytes that are "
                f"free on {device}",
            )
        return asked, "kv_cache_memory"
    fraction = config.kv_cache_fraction
    if fraction is None:
        is_cpu = device.type == "cpu"
        fraction = _FRACTION_OF_CPU_MEMORY if is_cpu else _FRACTION_OF_GPU_MEMORY
    return int(_find_free_memory(device) * fraction), "kv_cache_fraction"


def _find_free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    headrooms = (_find_cgroup_headroom(), _find_address_headroom())
    limits = [headroom for headroom in headrooms if headroom is not None]
    return min([_find_available_memory(), *limits])


def _find_available_memory() -> int:
    """Bytes that can be had without swapping, as the kernel estimates them."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise InvalidConfig("kv_cache_memory", "must be given: the system tells no memory")


def _find_cgroup_headroom() -> int | None:
    """Bytes that the container's limit leaves, as cgroup version 2 tells them."""
    try:
        folder = Path("/sys/fs/cgroup")
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        # No version 2 here, or `max`: then there is no limit.
        return None
    return max(0, limit - used)


def _find_address_headroom() -> int | None:
    """Bytes that the process's limit of address space leaves, as ulimit -v sets it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - num_pages * resource.getpagesize())
