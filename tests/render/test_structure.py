"""Forms of structured output are compiled in workers, once each."""

from __future__ import annotations

import time

import pytest
import trio

from trioserve.errors import InvalidParameter
from trioserve.render.shared import structure as structure_module
from trioserve.render.shared.structure import StructureCompiler
from trioserve.render.workers.threads import RendererWorkers
from trioserve.types.structured import StructuredOutput

DIGITS = StructuredOutput(kind="regex", value=r"\d+")


def count(compiler: StructureCompiler) -> tuple[int, int]:
    return compiler.num_hits, compiler.num_misses


async def test_an_equal_form_is_compiled_once() -> None:
    compiler = StructureCompiler(RendererWorkers(1))
    text = await compiler.compile(DIGITS)
    again = StructuredOutput(kind="regex", value=r"\d+")
    assert await compiler.compile(again) == text
    assert count(compiler) == (1, 1)
    await compiler.compile(StructuredOutput(kind="choice", choices=("a",)))
    assert count(compiler) == (1, 2)


async def test_the_oldest_forms_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure_module, "_MAX_CACHED_CHARACTERS", 600)
    compiler = StructureCompiler(RendererWorkers(1))
    for letter in "abcdefgh":
        await compiler.compile(StructuredOutput(kind="regex", value=letter))
    await compiler.compile(StructuredOutput(kind="regex", value="h"))
    assert count(compiler) == (1, 8)
    await compiler.compile(StructuredOutput(kind="regex", value="a"))
    assert count(compiler) == (1, 9)


async def test_a_wrong_form_is_not_remembered() -> None:
    compiler = StructureCompiler(RendererWorkers(1))
    for _ in range(2):
        with pytest.raises(InvalidParameter, match="guided_regex"):
            await compiler.compile(
                StructuredOutput(kind="regex", value="(", param="guided_regex")
            )
    assert count(compiler) == (0, 2)


async def test_a_form_that_takes_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(structure_module, "_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(structure_module, "_compile", lambda form: time.sleep(0.2))
    workers = RendererWorkers(1)
    compiler = StructureCompiler(workers)
    with pytest.raises(InvalidParameter, match="takes longer than 0.01 s"):
        await compiler.compile(DIGITS)
    with trio.fail_after(60):
        while workers.statistics().abandoned:
            await trio.sleep(0.01)
