"""A sequence that repeats itself ends as soon as its rule says, and no other one does."""

from __future__ import annotations

from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
from scheduling import Loop, make_scheduler, make_sequence

from trioserve.errors import InvalidParameter
from trioserve.scheduler.generation.repetition import RepetitionDetector
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.repetition import MAX_PATTERN_SIZE, RepetitionDetection


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
    output: list[int], num_sequences: int, depth: int, **fields: Any
) -> dict[int, tuple[list[int], str]]:
    """Run sequences that write the same, with too few blocks for all of them."""
    scheduler = make_scheduler(
        num_blocks=2 + len(output) // 4,
        max_num_seqs=3,
        max_num_batched_tokens=8,
        max_model_len=4 + len(output),
    )
    fresh = scheduler.statistics()
    device = FakeDevice(lambda _, index: output[index], block_size=4)
    loop = Loop(scheduler, device, depth)
    for number in range(num_sequences):
        loop.add(make_sequence(number, 3, **fields))
    loop.run()
    assert scheduler.statistics() == fresh
    return {
        number: (tokens, loop.ended[number][0])
        for number, tokens in loop.written.items()
    }


@given(rules(), outputs(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 20))
@settings(max_examples=examples(60), deadline=None)
def test_sequences_end_so_with_steps_in_flight_and_preemptions(
    rule: RepetitionDetection,
    output: list[int],
    depth: int,
    num_sequences: int,
    min_tokens: int,
) -> None:
    expected = output, "length"
    for length in range(max(1, min_tokens), len(output)):
        if is_repeating(output[:length], rule):
            expected = output[:length], "repetition"
            break
    found = write(
        output,
        num_sequences,
        depth,
        max_tokens=len(output),
        min_tokens=min(min_tokens, len(output)),
        repetition_detection=rule,
    )
    assert found == {number: expected for number in range(num_sequences)}


@pytest.mark.parametrize("rule", [None, RepetitionDetection()])
def test_without_a_rule_a_sequence_goes_on(rule: RepetitionDetection | None) -> None:
    written = write([5] * 40, 1, 2, max_tokens=40, repetition_detection=rule)
    assert written == {0: ([5] * 40, "length")}


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
