"""The answers of all processes about one adapter, which becomes theirs together or not at all."""

from __future__ import annotations

from dataclasses import replace

import trio

from ...errors import InvalidAdapter
from ...types.adapter import AdapterFacts


class AdapterAnswers:
    """The answers about an adapter that is being loaded.

    Args:
      count: of processes.
    """

    def __init__(self, count: int) -> None:
        self._num_left = count
        self._all_are_here = trio.Event()
        self._loaded: list[AdapterFacts] = []
        self._refusals: list[str] = []

    def add(self, answer: AdapterFacts | str) -> None:
        """Add the answer of a process: the facts about its part, or a refusal."""
        if isinstance(answer, str):
            self._refusals.append(answer)
        else:
            self._loaded.append(answer)
        self._num_left -= 1
        if self._num_left == 0:
            self._all_are_here.set()

    async def wait_complete(self) -> None:
        await self._all_are_here.wait()

    def join(self, name: str) -> AdapterFacts:
        """Return the facts about the whole adapter.

        Raises:
          InvalidAdapter: a process has refused it, no process has a module for a tensor, or
            its files have changed meanwhile.
        """
        if self._refusals:
            raise InvalidAdapter(name, min(self._refusals))
        first = self._loaded[0]
        unmatched = set.intersection(*({*each.unmatched} for each in self._loaded))
        if unmatched:
            raise InvalidAdapter(
                name,
                f"the tensor {min(unmatched)} belongs to no module that adapters may change",
            )
        if any(each.digest != first.digest for each in self._loaded):
            raise InvalidAdapter(
                name, "its files differ among the processes that share it"
            )
        return replace(
            first,
            rank=max(each.rank for each in self._loaded),
            num_bytes=sum(each.num_bytes for each in self._loaded),
            unmatched=(),
        )
