"""The benches of scheduling and of encoding report the figures of their docstrings."""

from __future__ import annotations

from pathlib import Path

import async_scheduling
import chunk_encoding
import fairness
import placeholders
import pytest
import schema
import trio

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info
from trioserve.testing.tokenizer import tiny_tokenizer


def test_every_kind_of_placeholder_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "NUM_SEQUENCES", 2)
    figures = placeholders.measure(10, steps=2)
    assert figures.keys() == placeholders.KINDS.keys()
    assert all(milliseconds > 0 for milliseconds in figures.values())
    results = {length: figures for length in placeholders.LENGTHS}
    placeholders.save_plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    *_, last = placeholders.write_report(results)
    assert last == "backward: 1.00 times at 60000 tokens what it takes at 100"


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
    """In virtual time the host takes no time, so the device never waits."""
    for depth in async_scheduling.DEPTHS:
        figures = await async_scheduling.step_device(
            tiny_tokenizer(tmp_path),
            depth=depth,
            step_seconds=0.01,
            reads_text=reads_text,
            num_tokens=20,
        )
        assert figures.idle_ms == pytest.approx(0.0, abs=1e-9)
        # The step that computes the prompts also samples the first tokens.
        assert figures.share == pytest.approx(1.0)


async def test_a_long_prompt_lengthens_the_gaps_of_a_stream(
    autojump_clock: object,
) -> None:
    """In virtual time a step takes 10 ms, and 1 ms for each of at most 256 tokens."""
    info = make_info(2048, vocab_size=2000)
    core = LocalCore(
        Scheduler(
            num_blocks=2048,
            block_size=16,
            max_num_seqs=256,
            max_num_batched_tokens=256,
            max_model_len=info.max_model_len,
        ),
        FakeExecutor(FakeDevice().step, step_seconds=0.01, token_seconds=0.001),
        info=info,
    )
    engine = TokenEngine(core, info=info, max_num_sequences=256)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        figures = await fairness.measure(engine, 0, 1000)
        nursery.cancel_scope.cancel()
    assert figures["alone longest"] == pytest.approx(0.011)
    assert figures["long longest"] == pytest.approx(0.266)
    assert figures["long first"] == pytest.approx(1.05, abs=0.05)
    rows = list(fairness.build_table({"inf": [figures]}))
    assert rows[0] == ["", "inf"] and ["alone longest", "0.011"] in rows


def test_a_body_is_decoded_by_both_libraries() -> None:
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    lines = list(schema.compare_decoding(1, {"chat": body}))
    assert [line.partition(":")[0] for line in lines] == [
        "decode_chat_msgspec",
        "decode_chat_pydantic",
        "decode_chat_ratio",
    ]


def test_a_chunk_is_encoded_in_three_ways() -> None:
    lines = list(chunk_encoding.compare_encoding(1, 2))
    assert [line.partition(":")[0] for line in lines] == [
        "chunk_cut",
        "chunk_whole",
        "chunk_pydantic",
        "chunk_ratio",
    ]
