"""A small table of the tasks with the longest steps, by name."""

from __future__ import annotations

from dataclasses import dataclass

# Names of tasks are names of functions. A program may choose longer ones.
_NAME_LENGTH = 200

# No function has this name; a task that a program names so is counted with the rest.
OTHERS = "(others)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """The slow steps of all tasks of one name, since the name entered the table.

    Attributes:
      total_seconds: the sum of all of them.
    """

    name: str
    num_steps: int
    total_seconds: float
    longest_seconds: float


@dataclass(slots=True)
class _Row:
    num_steps: int = 0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, num_steps: int, seconds: float, longest: float) -> None:
        self.num_steps += num_steps
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, longest)

    def freeze(self, name: str) -> Offender:
        return Offender(
            name=name,
            num_steps=self.num_steps,
            total_seconds=self.total_seconds,
            longest_seconds=self.longest_seconds,
        )


class OffenderTable:
    """Keeps the names with the longest single steps; the rest are counted together.

    The numbers of a name that leaves the table go to the rest, so the sum of all rows
    stays right.

    Args:
      size: most names in the table.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[str, _Row] = {}
        self._others = _Row()

    def add(self, name: str, seconds: float) -> None:
        """Count a slow step of some task of that name."""
        self._find_row(name[:_NAME_LENGTH], seconds).add(1, seconds, seconds)

    def list_offenders(self) -> tuple[Offender, ...]:
        """Return the rows, the longest step first, and the rest last."""
        rows = sorted(self._rows.items(), key=lambda item: -item[1].longest_seconds)
        if self._others.num_steps:
            rows.append((OTHERS, self._others))
        return tuple(row.freeze(name) for name, row in rows)

    def _find_row(self, name: str, seconds: float) -> _Row:
        if name in self._rows:
            return self._rows[name]
        if name == OTHERS:
            return self._others
        if len(self._rows) == self._size:
            least = min(self._rows, key=lambda name: self._rows[name].longest_seconds)
            if seconds <= self._rows[least].longest_seconds:
                return self._others
            gone = self._rows.pop(least)
            self._others.add(gone.num_steps, gone.total_seconds, gone.longest_seconds)
        self._rows[name] = row = _Row()
        return row
