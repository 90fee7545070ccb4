"""bench/quality.py compares answers of one text."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest
import quality

FIRST = quality.Window(
    token_ids=(5, 6),
    logprobs=(math.log(0.5), math.log(0.125)),
    likeliest=(5, 7),
    answer=(1, 2, 3),
)


def test_a_setting_is_compared_with_the_first() -> None:
    worse = replace(
        FIRST,
        logprobs=(math.log(0.25), math.log(0.0625)),
        likeliest=(5, 8),
        answer=(1, 9, 3),
    )
    found = quality.compare("worse", [FIRST, worse], [FIRST, FIRST])
    assert found.num_tokens == 4
    assert found.perplexity == pytest.approx(4 * 2**0.5)
    assert found.ratio == pytest.approx(2**0.5)
    assert found.difference == pytest.approx(math.log(2) / 2)
    assert (found.same_token, found.same_answer) == (0.75, 0.5)
    assert found.first_change == 2.0


def test_texts_of_other_tokens_are_not_compared() -> None:
    with pytest.raises(ValueError, match="gguf cuts the text into other tokens"):
        quality.compare("gguf", [replace(FIRST, token_ids=(5,))], [FIRST])


def test_a_text_is_cut_into_whole_windows() -> None:
    assert quality.cut_text("a b\nc d e", 2, 9) == ["a b\nc", "d e"]
    assert quality.cut_text("a b c d e", 2, 1) == ["a b"]


def test_a_setting_is_a_model_and_options() -> None:
    found = quality.read_setting("model=x.gguf,dtype=float32")
    assert (found.model, found.options) == ("x.gguf", {"dtype": "float32"})
