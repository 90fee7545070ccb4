"""Results of a run: machine and time, saved files, several reports side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
import os
from pathlib import Path
import platform
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def describe_machine() -> str:
    """Describe the machine and its present load; call it before the run."""
    busy = os.getloadavg()[0]
    cores = f"{os.cpu_count()} cores, load average before {busy:.1f}"
    return f"{platform.platform()}, {cores}"


def write_now() -> str:
    """Write the present time in the format of ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def save(path: Path | None, results: Any) -> None:
    """Save results as JSON; without a path, do nothing."""
    if path is not None:
        path.write_bytes(msgspec.json.encode(results))


def load_reports(paths: Iterable[Path], kind: type[T]) -> list[T]:
    """Read saved results.

    Raises:
      ValueError: a file is not a result of this bench.
    """
    reports = []
    for path in paths:
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=kind))
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} is not a saved result: {error}") from error
    return reports


def check_same(loads: Iterable[str]) -> None:
    """Refuse to compare results of different loads.

    Args:
      loads: a description of each result's load.

    Raises:
      ValueError: two descriptions differ.
    """
    kinds = list(dict.fromkeys(loads))
    if len(kinds) > 1:
        raise ValueError(f"results of different loads: {'; '.join(kinds)}")


def number_labels(labels: Sequence[Iterable[str]]) -> list[dict[str, str]]:
    """Add the report's number to each label that an earlier report has, too."""
    taken: set[str] = set()
    renamed = []
    for number, each in enumerate(labels, start=1):
        renamed.append(
            {
                label: f"{label} ({number})" if label in taken else label
                for label in each
            }
        )
        taken.update(renamed[-1].values())
    return renamed


def join_distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
