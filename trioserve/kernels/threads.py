"""The number of threads that this process may run at once."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def count_threads(cgroups: Path = _CGROUPS) -> int:
    """Return the number of cores that this process may use, by affinity and quota.

    A container's quota stops all threads of a process once they have used their time, so
    more threads than the quota has cores wait for each other.

    Args:
      cgroups: where cgroup v2 is mounted.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _read_quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def _read_quota(cgroups: Path) -> float | None:
    """Return the cores that the process's cgroup and its parents allow; None is all.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.max.
    """
    quotas = []
    for folder in _list_groups(cgroups):
        try:
            limit, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if limit != "max":
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _list_groups(cgroups: Path) -> list[Path]:
    """Return the folder of the process's cgroup, and the folders above it."""
    try:
        lines = _OWN_GROUP.read_text().splitlines()
    except OSError:
        lines = []
    # The line of version 2 is "0::/path". In a container the path may be one outside.
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = cgroups / path.lstrip("/")
    return [group, *(each for each in group.parents if each.is_relative_to(cgroups))]
