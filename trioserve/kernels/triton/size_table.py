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
from typing import Any, TypeVar

import platformdirs

logger = logging.getLogger(__name__)

# Raise this number when files of earlier versions must not be read.
_LAYOUT = 3

# A starting server waits for it.
_MOST_SECONDS = 5.0

_Size = TypeVar("_Size", bound=tuple[int, ...])


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
        # Of the types of their candidates.
        self._chosen: dict[str, Any] = {}

    def choose(
        self,
        facts: str,
        candidates: Sequence[_Size],
        measure: Callable[[_Size], float],
    ) -> _Size:
        """Return the fastest of some sizes.

        Args:
          facts: all that times depend on.
          candidates: the first is used where nothing can be measured.
          measure: the seconds that a size takes; it may raise any error.
        """
        if facts not in self._chosen:
            self._chosen[facts] = self._find(facts, candidates, measure)
        chosen: _Size = self._chosen[facts]
        return chosen

    def _find(
        self,
        facts: str,
        candidates: Sequence[_Size],
        measure: Callable[[_Size], float],
    ) -> _Size:
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
        candidates: Sequence[_Size],
        measure: Callable[[_Size], float],
    ) -> dict[_Size, float]:
        """Return the seconds of each size, of those for which there is time."""
        times: dict[_Size, float] = {}
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

    def _read(self, facts: str, candidates: Sequence[_Size]) -> _Size | None:
        """Return the size that is kept; None without one."""
        path = self._find_path(facts)
        try:
            kept = tuple(json.loads(path.read_bytes())["size"])
        except OSError:
            return None
        except (ValueError, TypeError, KeyError):
            kept = ()
        for size in candidates:
            if size == kept:
                return size
        logger.warning("%s is damaged or old, so sizes are measured again", path)
        return None

    def _keep(self, facts: str, size: _Size) -> None:
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
