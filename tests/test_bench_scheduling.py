"""The benches of steps in flight measure what they say."""

from __future__ import annotations

from pathlib import Path

import async_scheduling
import placeholders
import pytest

from trioserve.testing.tokenizer import tiny_tokenizer


def test_every_kind_of_placeholder_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "NUM_SEQUENCES", 2)
    figures = placeholders.measure(10, steps=2)
    assert figures.keys() == placeholders.KINDS.keys()
    assert all(milliseconds > 0 for milliseconds in figures.values())
    results = {length: figures for length in placeholders.LENGTHS}
    placeholders.draw(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize("forward", [True, False])
def test_a_scan_finds_the_placeholder_from_either_side(forward: bool) -> None:
    scan = placeholders.Scan(3, forward=forward)
    scan.step()
    scan.step()
    assert scan.outputs[0] == [0, 1, 2, 7, 7, -1]


@pytest.mark.parametrize("reads_text", [True, False])
async def test_a_device_that_is_always_served_first_is_never_idle(
    tmp_path: Path, autojump_clock: object, reads_text: bool
) -> None:
    """In virtual time the host takes none; with one step in flight it waits for none."""
    for depth in async_scheduling.DEPTHS:
        figures = await async_scheduling.step_device(
            tiny_tokenizer(tmp_path),
            depth=depth,
            step_seconds=0.01,
            reads_text=reads_text,
            num_tokens=20,
        )
        assert figures.idle_ms == pytest.approx(0.0, abs=1e-9)
        # The step that computes the prompts gives the first tokens.
        assert figures.share == pytest.approx(1.0)
