"""The table of requests: rows, columns and orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, get_args

from ...errors import escape_ascii
from .client import Details, Request, Task
from .config import Order

ORDERS: Final[tuple[Order, ...]] = get_args(Order)

_PHASES: Final = ("body", "load", "render", "queue", "prefill", "decode", "write")

_KEYS: Final[dict[Order, Callable[[Request], Any]]] = {
    "age": lambda each: -each.age_seconds,
    "phase": lambda each: (_rank(each.phase), -each.age_seconds),
    "tokens": lambda each: -(each.prompt_tokens + each.completion_tokens),
    "key": lambda each: (each.key or "", -each.age_seconds),
    "id": lambda each: each.id,
}

_HEADING: Final = (
    f"{'ID':<16} {'PHASE':<7} {'AGE':>6} {'LIMIT':>6} {'IN':>6} {'OUT':>6} {'KEY':<9} "
)
_MODEL: Final = 16


def sort(requests: Sequence[Request], order: Order, *, reverse: bool) -> list[Request]:
    """Return requests in an order: the oldest, or the largest, first."""
    return sorted(requests, key=_KEYS[order], reverse=reverse)


def has_models(requests: Sequence[Request]) -> bool:
    """Return whether a server with several models has these requests."""
    return any(each.model for each in requests)


def write_heading(requests: Sequence[Request]) -> str:
    """Write the names of the columns; models have one if there are several."""
    model = f"{'MODEL':<{_MODEL}} " if has_models(requests) else ""
    return f"{_HEADING}{model}PATH"


def write_row(request: Request, width: int, *, with_model: bool = False) -> str:
    """Write a request as a line that fits."""
    cells = [
        f"{_shorten(request.id, 16):<16}",
        f"{_shorten(request.phase, 7):<7}",
        f"{write_seconds(request.age_seconds):>6}",
        f"{write_seconds(request.timeout_seconds):>6}",
        f"{write_count(request.prompt_tokens):>6}",
        f"{write_count(request.completion_tokens):>6}",
        f"{_shorten(request.key or '-', 9):<9}",
    ]
    if with_model:
        cells.append(f"{_shorten(request.model or '-', _MODEL):<{_MODEL}}")
    return " ".join([*cells, escape_ascii(request.path)])[:width]


def write_summary(requests: Sequence[Request], *, engines: str = "") -> str:
    """Count the requests by phase, and tell the states of engines."""
    counts = Counter(escape_ascii(each.phase) for each in requests)
    parts = [f"{counts[phase]} {phase}" for phase in sorted(counts, key=_rank)]
    number = len(requests)
    noun = "request" if number == 1 else "requests"
    summary = f"{number} {noun}{': ' if parts else ''}{', '.join(parts)}"
    return f"{summary}; {escape_ascii(engines)}" if engines else summary


def write_table(
    requests: Sequence[Request], width: int, *, engines: str = ""
) -> Iterator[str]:
    """Write everything that --once prints."""
    yield write_summary(requests, engines=engines)
    if requests:
        yield write_heading(requests)[:width]
        with_model = has_models(requests)
        for each in requests:
            yield write_row(each, width, with_model=with_model)


def write_details(details: Details) -> Iterator[str]:
    """Write one request with everything that it holds."""
    blocks = "unknown" if details.kv_blocks is None else str(details.kv_blocks)
    yield f"{escape_ascii(details.method)} {escape_ascii(details.path)}"
    yield f"id        {escape_ascii(details.id)}"
    if details.model is not None:
        yield f"model     {escape_ascii(details.model)}"
    yield f"key       {escape_ascii(details.key or '-')}"
    yield f"phase     {escape_ascii(details.phase)}, {escape_ascii(details.worker)}"
    yield f"age       {write_seconds(details.age_seconds)}"
    yield f"deadline  {write_seconds(details.deadline_seconds)}"
    yield f"tokens    {details.prompt_tokens} in, {details.completion_tokens} out"
    yield f"KV blocks {blocks}"
    if details.task is not None:
        yield ""
        yield from _write_task(details.task, "")


def _write_task(task: Task, indent: str) -> Iterator[str]:
    yield f"{indent}{escape_ascii(task.name)}"
    # The innermost say most, but trio's own are always the same.
    own = [each for each in task.awaits if not each.startswith("trio.")]
    for each in own[-3:]:
        yield f"{indent}  in {escape_ascii(each)}"
    for child in task.tasks:
        yield from _write_task(child, f"{indent}    ")
    if task.num_tasks_left_out:
        yield f"{indent}    {task.num_tasks_left_out} more"


def write_seconds(seconds: float | None) -> str:
    """Write a duration in six characters."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.1f}s"
    if seconds < 6000:
        return f"{seconds / 60:.0f}m"
    return f"{min(seconds / 3600, 99_999):.0f}h"


def write_count(number: int) -> str:
    """Write a number in six characters."""
    return str(number) if number < 1_000_000 else f"{number / 1e6:.1f}M"


def _shorten(text: str, width: int) -> str:
    text = escape_ascii(text)
    return text if len(text) <= width else f"{text[: width - 1]}~"


def _rank(phase: str) -> int:
    return _PHASES.index(phase) if phase in _PHASES else len(_PHASES)
