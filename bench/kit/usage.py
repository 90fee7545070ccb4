"""CPU time and memory of processes, as Linux counts them."""

from __future__ import annotations

import os
from pathlib import Path
import re


def list_processes(pid: int) -> list[int]:
    """List a process and all of its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in list_processes(child))]


def read_command(pid: int) -> str:
    """Read the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def read_cpu_seconds(pid: int) -> float:
    """Read how much CPU time a process has used (proc(5): utime and stime)."""
    # The command's name, which ends at the last bracket, may have spaces.
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> float:
    """Read the memory of a process and its children, in MB, as read_own_memory."""
    return sum(map(read_own_memory, list_processes(pid)))


def read_own_memory(pid: int) -> float:
    """Read the memory of a process without its children, in MB.

    Each page is divided by the number of processes that share it (PSS).
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0
