"""Results of a run: machine and time, saved files, several reports side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
import os
from pathlib import Path
import platform
import sys
from typing import Any, Protocol, TypeVar

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


class Shown(Protocol):
    """A report that can be shown."""

    def list_failed(self) -> list[str]:
        """List the systems that answered no measured request."""
        ...


ShownT = TypeVar("ShownT", bound=Shown)


def show(
    report: ShownT,
    render: Callable[[ShownT], str],
    save_plot: Callable[[ShownT, Path], None],
    plot: Path | None,
) -> int:
    """Print a report and draw it, if a plot is wanted; returns the exit code."""
    print(render(report))
    if plot is not None:
        save_plot(report, plot)
    if failed := report.list_failed():
        print(f"no request succeeded: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


def run_and_print(
    run: Callable[[], T],
    render: Callable[[T], str],
    notes: str,
    expected: tuple[type[Exception], ...],
) -> int:
    """Run a bench, and print its result and a line about the run.

    Args:
      notes: text after the machine in the last line.
      expected: as of run_or_explain.

    Returns:
      the exit code
    """
    machine = describe_machine()
    found = run_or_explain(run, expected)
    if found is None:
        return 2
    print(render(found))
    print(f"{machine}; {notes}")
    return 0


def run_or_explain(
    run: Callable[[], T], expected: tuple[type[Exception], ...]
) -> T | None:
    """Run a bench; print an expected error as one line.

    Returns:
      the result; None after an error, and the caller exits with status 2
    """
    failed: BaseException | None = None
    try:
        return run()
    except* expected as errors:
        failed = next(list_errors(errors))
    print(f"{Path(sys.argv[0]).name}: {failed}", file=sys.stderr)
    return None


def list_errors(error: BaseException) -> Iterator[BaseException]:
    """List the errors in a group of groups, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from list_errors(each)
    else:
        yield error
