"""bench/default_sampling.py counts answers that do not end, repeat themselves or are wrong."""

from __future__ import annotations

import default_sampling as bench
import pytest


def answer(text: str, reason: str = "stop", expected: str = "") -> bench.Answer:
    return bench.Answer(
        question="?",
        expected=expected,
        text=text,
        num_tokens=len(text),
        finish_reason=reason,
    )


def test_answers_are_counted() -> None:
    found = bench.summarise(
        "x",
        [
            answer("PARIS.", expected="paris"),
            answer("Rome.", "length", expected="paris"),
            answer("It is eight.", "repetition", expected="seven|eight"),
        ],
    )
    assert (found.length, found.repetition, found.right) == (1, 1, 2)
    assert found.tokens == pytest.approx((6 + 5 + 12) / 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. The sea is deep.\n2. the sea is deep. No.\n- The sea is deep.", True),
        ("The sea is deep. The sea is deep. The sea is blue.", False),
        ("Yes, I do. Yes, I do. Yes, I do. Yes, I do.", False),
    ],
)
def test_a_sentence_that_stands_three_times_is_found(text: str, expected: bool) -> None:
    assert bench.repeats_a_sentence(text) == expected
