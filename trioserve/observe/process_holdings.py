"""The descriptors and the shared memory of this process, as Linux lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import gc
import os
from pathlib import Path
import re
from typing import Final

# The kernel takes 249 bytes.
_MAX_NAME: Final = 200

_PREFIX: Final = "trioserve-"
_MEMORY: Final = re.compile(rf"/memfd:{_PREFIX}(\S*)")

# Libraries open these when they first need them, and keep them.
_HARMLESS: Final = ("anon_inode:", "/dev/", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHoldings:
    """The things that this process holds.

    Args:
      memory: the request ids of shared memory that is mapped, or has a descriptor; empty
        for memory of no single request.
      descriptors: number and target of each descriptor, such as (7, "socket:[4711]"), without
        shared memory and without descriptors that libraries keep.
    """

    memory: tuple[str, ...]
    descriptors: tuple[tuple[int, str], ...]


def name_memory(request_id: str) -> str:
    """Return the name of shared memory with tensors of a request."""
    return _PREFIX + re.sub(r"[^\w.-]", "_", request_id, flags=re.ASCII)[:_MAX_NAME]


def inspect_process() -> ProcessHoldings:
    """Look at this process. It takes a millisecond for each thousand mappings."""
    if memory := _list_memory():
        # It may belong to objects that refer to each other.
        gc.collect()
        memory = _list_memory()
    targets = dict(_list_descriptors())
    return ProcessHoldings(
        memory=memory,
        descriptors=tuple(
            (number, target)
            for number, target in targets.items()
            if not target.startswith(_HARMLESS) and not _MEMORY.match(target)
        ),
    )


def _list_memory() -> tuple[str, ...]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [*maps, *(target for _, target in _list_descriptors())]
    return tuple(found[1] for line in lines if (found := _MEMORY.search(line)))


def _list_descriptors() -> Iterator[tuple[int, str]]:
    for path in Path("/proc/self/fd").iterdir():
        try:
            yield int(path.name), os.readlink(path)
        except OSError:
            # The descriptor of the listing itself, which is closed by now.
            continue
