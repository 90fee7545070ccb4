"""The times and tokens of a request reach the histograms."""

from __future__ import annotations

import pytest

from trioserve.http.record.request_counts import RequestCounts
from trioserve.http.record.stream_meter import StreamTimes
from trioserve.observe import Histogram


def sum_up(histogram: Histogram) -> tuple[int, float]:
    """Return how many values were counted, and their sum."""
    seen = histogram.statistics()
    return sum(seen.counts), seen.total


@pytest.fixture
def counts() -> RequestCounts:
    return RequestCounts()


@pytest.fixture
def times(counts: RequestCounts) -> StreamTimes:
    return StreamTimes(counts, arrived_at=100.0, submitted_at=101.0)


def test_two_sequences_are_timed(counts: RequestCounts, times: StreamTimes) -> None:
    times.note_tokens(0, 1, 105.0)
    times.note_tokens(1, 2, 106.0)
    times.note_tokens(0, 4, 109.0)
    times.note_finish(0, "stop")
    times.note_tokens(1, 1, 110.0)
    times.note_finish(1, "length")
    times.note_end(112.0, started_at=103.0, num_prompt_tokens=7)
    assert +counts.finished == {("stop",): 1, ("length",): 1}
    assert sum_up(counts.time_to_first_token) == (2, 5.0 + 6.0)
    # Tokens that come together share the time since the previous ones.
    assert sum_up(counts.inter_token_latency) == (2, 4.0 / 4 + 4.0)
    assert sum_up(counts.time_per_output_token) == (2, 4.0 / 4 + 4.0 / 2)
    assert sum_up(counts.latency) == (1, 12.0)
    assert sum_up(counts.queue_time) == (1, 2.0)
    assert sum_up(counts.prefill_time) == (1, 2.0)
    assert sum_up(counts.decode_time) == (1, 5.0)
    assert sum_up(counts.inference_time) == (1, 7.0)
    assert sum_up(counts.prompt_tokens) == (1, 7)
    assert sum_up(counts.generation_tokens) == (1, 8)
    assert times.num_tokens == 8


def test_a_single_token_has_no_time_between_tokens(
    counts: RequestCounts, times: StreamTimes
) -> None:
    times.note_tokens(0, 1, 105.0)
    times.note_finish(0, "length")
    times.note_end(105.0, started_at=103.0, num_prompt_tokens=1)
    assert sum_up(counts.time_per_output_token) == (0, 0)
    assert sum_up(counts.inter_token_latency) == (0, 0)
    assert sum_up(counts.decode_time) == (1, 0)


def test_an_answer_without_tokens_has_no_times_of_tokens(
    counts: RequestCounts, times: StreamTimes
) -> None:
    times.note_finish(0, "stop")
    times.note_end(108.0, started_at=103.0, num_prompt_tokens=1)
    assert counts.finished["stop",] == 1
    assert sum_up(counts.latency) == (1, 8.0)
    assert sum_up(counts.generation_tokens) == (1, 0)
    for histogram in (counts.queue_time, counts.prefill_time, counts.inference_time):
        assert sum_up(histogram) == (0, 0)
