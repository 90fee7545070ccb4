"""Compiles the forms of structured output, in renderer workers and under a time limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from ...errors import InvalidParameter
from ...types.structured import StructuredOutput
from ..workers.threads import RendererWorkers, TookTooLong

T = TypeVar("T")

# The largest schema that is taken compiles within a tenth of a second.
_TIMEOUT_SECONDS: Final = 5.0
_CHARACTERS_PER_SECOND: Final = 1e6
# A tool with ten parameters, in a form that is not JSON.
_SECONDS_PER_TOOL: Final = 5e-4

# Of the forms and of their grammars.
_MAX_CACHED_CHARACTERS: Final = 8 * 2**20


class StructureCompiler:
    """Turns forms into grammars, and remembers the last ones.

    Agents send the same schema with every request.

    Attributes:
      num_hits, num_misses: forms that were found, and that were compiled.
    """

    def __init__(self, workers: RendererWorkers) -> None:
        self.num_hits = 0
        self.num_misses = 0
        self._workers = workers
        self._grammars: OrderedDict[StructuredOutput, str] = OrderedDict()
        self._num_characters = 0

    async def compile(self, structure: StructuredOutput) -> str:
        """Return the text of the grammar.

        Raises:
          InvalidParameter: the form is wrong, cannot be expressed, or takes too long.
          RendererStuck: too many calls exceeded their limits and still run.
          grammar.failures.LibraryFailed: a defect of the library.
        """
        if (found := self._grammars.get(structure)) is not None:
            self._grammars.move_to_end(structure)
            self.num_hits += 1
            return found
        self.num_misses += 1
        seconds = len(structure.value) / _CHARACTERS_PER_SECOND
        text = await self._run(partial(_compile, structure), structure.param, seconds)
        self._keep(structure, text)
        return text

    async def write(
        self, write: Callable[[], StructuredOutput], param: str, num_tools: int
    ) -> StructuredOutput:
        """Return the form that a function writes for tools.

        Raises:
          InvalidParameter: the function does, or it takes too long.
          RendererStuck: as compile.
        """
        return await self._run(write, param, num_tools * _SECONDS_PER_TOOL)

    async def _run(self, work: Callable[[], T], param: str, seconds: float) -> T:
        try:
            return await self._workers.run_limited(
                work, _TIMEOUT_SECONDS, expected_seconds=seconds
            )
        except TookTooLong:
            raise InvalidParameter(
                param, f"takes longer than {_TIMEOUT_SECONDS:g} s to compile"
            ) from None

    def _keep(self, structure: StructuredOutput, text: str) -> None:
        if structure in self._grammars:
            return
        self._grammars[structure] = text
        self._num_characters += _count_characters(structure, text)
        while self._num_characters > _MAX_CACHED_CHARACTERS:
            self._num_characters -= _count_characters(
                *self._grammars.popitem(last=False)
            )


def _count_characters(structure: StructuredOutput, text: str) -> int:
    parts = sum(len(schema) for _, schema in structure.parts)
    return len(structure.value) + sum(map(len, structure.choices)) + parts + len(text)


def _compile(structure: StructuredOutput) -> str:
    # Imported here, because most servers never need it.
    from ...grammar.compile import compile_structure

    return compile_structure(structure)
