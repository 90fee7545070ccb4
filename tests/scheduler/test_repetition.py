"""A sequence that repeats itself ends as soon as its rule says, and no other one does."""

from __future__ import annotations

from collections import deque

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.errors import InvalidParameter
from trioserve.scheduler.generation.repetition import RepetitionDetector
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.repetition import MAX_PATTERN_SIZE, RepetitionDetection
from trioserve.types.sampling import SamplingParams


@st.composite
def rules(draw: st.DrawFn) -> RepetitionDetection:
    most = draw(st.integers(1, 9))
    return RepetitionDetection(
        max_pattern_size=most,
        min_pattern_size=draw(st.integers(0, most)),
        min_count=draw(st.integers(2, 5)),
    )


@st.composite
def outputs(draw: st.DrawFn) -> list[int]:
    """Draw tokens that repeat each other, from a vocabulary of three."""
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, 6))):
        tokens += draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
        size = draw(st.integers(1, 12))
        tokens += tokens[-size:] * draw(st.integers(0, 8))
    return tokens


def is_repeating(tokens: list[int], rule: RepetitionDetection) -> bool:
    """Look for each pattern by itself."""
    sizes = range(max(1, rule.min_pattern_size), rule.max_pattern_size + 1)
    return any(
        tokens[-size * rule.min_count :] == tokens[-size:] * rule.min_count
        for size in sizes
    )


@given(rules(), outputs())
@settings(max_examples=examples(300), deadline=None)
def test_a_repetition_is_found_with_its_last_token(
    rule: RepetitionDetection, tokens: list[int]
) -> None:
    detector = RepetitionDetector(rule)
    for length in range(1, len(tokens) + 1):
        known = tokens[:length]
        assert detector.is_repeating(known) == is_repeating(known, rule)


class CountingList(list[int]):
    """Counts how often a part of it is read."""

    num_reads = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        self.num_reads += 1
        return super().__getitem__(key)


def test_an_ordinary_text_is_seldom_looked_at() -> None:
    rule = RepetitionDetection(
        min_pattern_size=16, max_pattern_size=MAX_PATTERN_SIZE, min_count=4
    )
    detector, tokens = RepetitionDetector(rule), CountingList()
    for index in range(10_000):
        tokens.append(index * index % 9973)
        assert not detector.is_repeating(tokens)
    assert tokens.num_reads < 10_000 / 40


def write(
    output: list[int], num_sequences: int, depth: int, sampling: SamplingParams
) -> dict[int, tuple[list[int], str | None]]:
    """Run sequences that write the same, with too few blocks for all of them."""
    scheduler = Scheduler(
        num_blocks=2 + len(output) // 4,
        block_size=4,
        max_num_seqs=3,
        max_num_batched_tokens=8,
        max_model_len=4 + len(output),
    )
    fresh = scheduler.statistics()
    device = FakeDevice(lambda _, index: output[index], block_size=4)
    for number in range(num_sequences):
        scheduler.add(
            Sequence(
                sequence_id=SequenceId(number),
                prompt_token_ids=(number, 1, 2),
                sampling=sampling,
                seed=number,
                arrival=number,
                flow=Flow(),
            )
        )
    found: dict[int, tuple[list[int], str | None]] = {}
    in_flight: deque[StepPlan] = deque()
    while True:
        while len(in_flight) < depth and (plan := scheduler.schedule()):
            in_flight.append(plan)
        if not in_flight:
            assert scheduler.statistics() == fresh
            return found
        plan = in_flight.popleft()
        for delta in scheduler.update(plan, device.step(plan)):
            tokens, _ = found.get(delta.sequence_id, ([], None))
            tokens = [*tokens, *delta.token_ids]
            found[delta.sequence_id] = tokens, delta.finish_reason


@given(rules(), outputs(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 20))
@settings(max_examples=examples(60), deadline=None)
def test_sequences_end_so_with_steps_in_flight_and_preemptions(
    rule: RepetitionDetection,
    output: list[int],
    depth: int,
    num_sequences: int,
    min_tokens: int,
) -> None:
    sampling = SamplingParams(
        max_tokens=len(output),
        min_tokens=min(min_tokens, len(output)),
        repetition_detection=rule,
    )
    expected = output, "length"
    for length in range(max(1, min_tokens), len(output)):
        if is_repeating(output[:length], rule):
            expected = output[:length], "repetition"
            break
    found = write(output, num_sequences, depth, sampling)
    assert found == {number: expected for number in range(num_sequences)}


@pytest.mark.parametrize("rule", [None, RepetitionDetection()])
def test_without_a_rule_a_sequence_goes_on(rule: RepetitionDetection | None) -> None:
    sampling = SamplingParams(max_tokens=40, repetition_detection=rule)
    assert write([5] * 40, 1, 2, sampling) == {0: ([5] * 40, "length")}


@pytest.mark.parametrize(
    ("field", "numbers"),
    [
        ("max_pattern_size", {"max_pattern_size": -1}),
        ("max_pattern_size", {"max_pattern_size": MAX_PATTERN_SIZE + 1}),
        ("min_pattern_size", {"max_pattern_size": 4, "min_pattern_size": 5}),
        ("min_pattern_size", {"max_pattern_size": 4, "min_pattern_size": -1}),
        ("min_count", {"max_pattern_size": 4}),
        ("min_count", {"max_pattern_size": 4, "min_count": 1}),
    ],
)
def test_impossible_numbers_are_refused(field: str, numbers: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter, match="must be between") as caught:
        RepetitionDetection(**numbers)
    assert caught.value.param == f"repetition_detection.{field}"
