"""The end of a bench: its report, its plot, its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
import sys
from typing import Protocol, TypeVar

from trioserve.programs.bench.measuring.report import describe_machine, save

T = TypeVar("T")


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


def run_and_save(
    run: Callable[[], T],
    render: Callable[[T], str],
    expected: tuple[type[Exception], ...],
    path: Path | None,
) -> int:
    """Run a bench, print its report and save it; returns the exit code.

    Args:
      expected: as of run_or_explain.
      path: of the JSON file; None saves nothing.
    """
    report = run_or_explain(run, expected)
    if report is None:
        return 2
    print(render(report))
    save(path, report)
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
