"""The names of this machine and its software, for reports of defects.

torch is not imported, because that takes seconds and it may be broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
import os
from pathlib import Path
import platform
import subprocess
import sys

from .library import NoKernels, find_instruction_sets, open_library
from .threads import count_threads

_PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "trio"),
    *("hypercorn", "quart", "quart-trio", "huggingface_hub", "llguidance", "numpy"),
)

# Variables whose values are numbers, switches or names of devices.
_SHOWN = (
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MALLOC_ARENA_MAX", "LANG"),
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "PYTHONOPTIMIZE", "TOKENIZERS_PARALLELISM"),
)

# Variables that may hold secrets, or names of people: only that they are set.
_HIDDEN = (
    *("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "LD_PRELOAD", "PYTHONPATH"),
)


def describe_machine(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the facts by name, in the order of a report."""
    facts = {name: _find_version(name) for name in _PACKAGES}
    facts["python"] = f"{platform.python_version()} ({sys.executable})"
    facts["system"] = platform.platform()
    facts["processor"] = _read("/proc/cpuinfo", "model name") or platform.machine()
    facts["instructions"] = ", ".join(find_instruction_sets()) or "none for kernels"
    facts["kernels"] = _find_kernels()
    facts["threads"] = f"{count_threads()} of {os.cpu_count()} cores"
    facts["memory"] = (
        f"{_read_memory('MemTotal')}, available {_read_memory('MemAvailable')}"
    )
    facts["cgroup limit"] = _read_cgroup()
    facts["gpu"] = _list_gpus()
    facts["commit"] = _find_commit()
    for name in _SHOWN:
        if name in environment:
            facts[name] = environment[name]
    for name in _HIDDEN:
        if name in environment or name.lower() in environment:
            facts[name] = "is set"
    return facts


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _find_kernels() -> str:
    try:
        return f"native, {open_library().name}"
    except (NoKernels, OSError, AttributeError) as error:
        return f"torch, because {error}"


def _read(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    found = (line for line in lines if line.startswith(key))
    return next(found, "").partition(":")[2].strip()


def _read_memory(key: str) -> str:
    """Return a figure of the system, such as "15.6 GiB"."""
    number = _read("/proc/meminfo", key).partition(" ")[0]
    return _write_size(int(number) * 2**10) if number.isdigit() else "unknown"


def _read_cgroup() -> str:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return "none"
    return _write_size(int(limit)) if limit.isdigit() else limit


def _write_size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


def _list_gpus() -> str:
    fields = "name,memory.total,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    return _ask(command) or "none"


def _find_commit() -> str:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "no checkout"
    return (
        _ask(["git", "-C", str(root), "describe", "--always", "--dirty"]) or "unknown"
    )


def _ask(command: list[str]) -> str:
    """Return a program's output in one line; "" if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 else ""
