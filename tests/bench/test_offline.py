"""bench/offline.py draws ShareGPT's lengths, and reads what run-batch reports."""

from __future__ import annotations

from pathlib import Path
import statistics

import msgspec
import offline
import pytest
import trio
from trio.testing import MockClock

from trioserve.programs.batch.progress import BatchProgress, Waits
from trioserve.programs.batch.record import Done

LOAD = offline.Load(number=3, option={"max_num_seqs": 4, "dtype": "float32"})


@pytest.mark.parametrize(
    ("histogram", "mean"), [(offline.PROMPTS, 237), (offline.ANSWERS, 208)]
)
def test_lengths_have_the_shares_of_the_histogram(
    histogram: offline.Histogram, mean: int
) -> None:
    count = 10_000
    lengths = [offline.find_length(histogram, part / count) for part in range(count)]
    total = histogram[-1][1]
    for most, number in histogram[1:]:
        share = sum(length <= most for length in lengths) / count
        assert share == pytest.approx(number / total, abs=0.01)
    assert min(lengths) == 2 and 1000 < max(lengths) <= 2000
    assert statistics.fmean(lengths) == pytest.approx(mean, rel=0.01)


def test_a_seed_gives_the_same_prompts_whatever_their_number() -> None:
    requests = list(offline.write_requests(20, seed=1))
    assert requests[:5] == list(offline.write_requests(5, seed=1))
    assert requests != list(offline.write_requests(20, seed=2))
    assert len({request.prompt for request in requests}) == 20


def test_an_option_is_a_number_a_flag_or_a_text() -> None:
    read = map(offline.read_option, ("max_num_seqs=256", "eager=true", "dtype=auto"))
    assert dict(read) == {"max_num_seqs": 256, "eager": True, "dtype": "auto"}


def test_the_command_has_the_options_of_the_engine() -> None:
    command = offline.write_batch_command(LOAD, Path("in"), Path("out"))
    assert command[2:] == [
        *("trioserve", "run-batch", LOAD.model, "-i", "in", "-o", "out"),
        *("--no-prefix-caching", "--max-num-seqs", "4", "--dtype", "float32"),
        "--no-engine-process",
    ]


def test_a_line_asks_for_an_answer_of_its_length() -> None:
    [request] = offline.write_requests(1, seed=0)
    line = msgspec.json.decode(offline.write_line(7, request))
    assert (line["custom_id"], line["url"]) == ("7", "/v1/completions")
    assert line["body"]["max_tokens"] == request.num_tokens
    assert line["body"]["ignore_eos"] is True


def test_the_table_has_the_median_of_the_rounds() -> None:
    rounds = [
        offline.Round(num_in=100, num_out=50, seconds=seconds)
        for seconds in (1.0, 4.0, 2.0)
    ]
    report = offline.Report(
        created="now", machine="a machine", load=LOAD, rounds={"process": rounds}
    )
    assert list(offline.build_table(report))[1] == [
        *("process", "3", "100", "50", "2.0", "25", "75")
    ]


async def test_the_closing_line_of_run_batch_is_read(
    autojump_clock: MockClock,
) -> None:
    progress = BatchProgress(Done(), None, Waits())
    await trio.sleep(24.5)
    found = offline.CLOSING.search(progress.describe().encode())
    assert found is not None and found.groups() == (b"0", b"0", b"24.5")
    line = b'{"response":{"body":{"usage":{"prompt_tokens":2,"completion_tokens":3}}}}'
    assert offline.read_usage(line) == (2, 3)
