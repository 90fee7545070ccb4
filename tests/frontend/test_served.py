"""The tokens of a text are estimated from the texts before it."""

from __future__ import annotations

from trioserve.frontend.served import TextRatio


def test_nothing_is_known_before_the_first_text() -> None:
    assert TextRatio().estimate(10_000) == 0


def test_the_ratio_follows_the_texts() -> None:
    ratio = TextRatio()
    for _ in range(100):
        ratio.learn(1000, 200)
    assert ratio.estimate(500) == 100
    # A prompt of token ids alone says nothing.
    ratio.learn(0, 0)
    assert ratio.estimate(500) == 100
    for _ in range(200):
        ratio.learn(1000, 900)
    assert 400 < ratio.estimate(500) <= 450
