"""The fastest sizes of kernels' programs on this machine, kept in the user's cache.

A size is measured at the first start, and read from its file at all later ones. Each file has one
size, and its name is a hash of all facts that the choice depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
import json
import logging
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
import time

import platformdirs

from .widths import AttendSize

logger = logging.getLogger(__name__)

# Raise this number when files of earlier versions must not be read.
_LAYOUT = 1

# A starting server waits for it.
_MOST_SECONDS = 5.0


class SizeTable:
    """Chooses among sizes by their times.

    Args:
      folder: of the files; it need not exist.
      seconds: most that all measurements of this process take together.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float = _MOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._left = seconds
        self._clock = clock
        self._chosen: dict[str, AttendSize] = {}

    def choose(
        self,
        facts: str,
        candidates: Sequence[AttendSize],
        measure: Callable[[AttendSize], float],
    ) -> AttendSize:
        """Return the fastest of some sizes.

        Args:
          facts: all that times depend on.
          candidates: the first is used where nothing can be measured.
          measure: the seconds that a size takes; it may raise any error.
        """
        if facts not in self._chosen:
            self._chosen[facts] = self._find(facts, candidates, measure)
        return self._chosen[facts]

    def _find(
        self,
        facts: str,
        candidates: Sequence[AttendSize],
        measure: Callable[[AttendSize], float],
    ) -> AttendSize:
        if len(candidates) == 1:
            return candidates[0]
        kept = self._read(facts, candidates)
        if kept is not None:
            return kept
        times = self._measure(candidates, measure)
        if len(times) < 2:
            return candidates[0]
        fastest = min(times, key=lambda size: times[size])
        # After too few measurements, the next start goes on: it need not compile as much.
        if len(times) == len(candidates):
            self._keep(facts, fastest)
        return fastest

    def _measure(
        self,
        candidates: Sequence[AttendSize],
        measure: Callable[[AttendSize], float],
    ) -> dict[AttendSize, float]:
        """Return the seconds of each size, of those for which there is time."""
        times: dict[AttendSize, float] = {}
        longest = 0.0
        for size in candidates:
            if self._left <= longest:
                break
            began = self._clock()
            try:
                times[size] = measure(size)
            except Exception as error:
                if not times:
                    logger.warning("sizes of attention are not measured: %s", error)
                    self._left = 0.0
                    break
                # The device may have too little memory for a larger size.
                times[size] = float("inf")
            took = self._clock() - began
            self._left -= took
            longest = max(longest, took)
        if times:
            logger.info("seconds of attention by size: %s", times)
        return times

    def _read(self, facts: str, candidates: Sequence[AttendSize]) -> AttendSize | None:
        """Return the size that is kept; None without one."""
        path = self._find_path(facts)
        try:
            kept = json.loads(path.read_bytes())
            size = AttendSize(*kept["size"])
        except OSError:
            return None
        except (ValueError, TypeError, KeyError):
            size = None
        if size not in candidates:
            logger.warning("%s is damaged or old, so sizes are measured again", path)
            return None
        return size

    def _keep(self, facts: str, size: AttendSize) -> None:
        path = self._find_path(facts)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
                json.dump({"facts": facts, "size": size}, file)
            # Several processes may measure at once; each file is whole.
            os.replace(file.name, path)
        except OSError as error:
            logger.warning("sizes of attention cannot be kept: %s", error)

    def _find_path(self, facts: str) -> Path:
        name = blake2b(facts.encode(), digest_size=12).hexdigest()
        return self._folder / f"{name}.json"


@cache
def open_size_table() -> SizeTable:
    """Return this process's table, in the user's cache."""
    folder = platformdirs.user_cache_path("trioserve", appauthor=False)
    return SizeTable(folder / f"attention-{_LAYOUT}")
