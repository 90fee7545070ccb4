"""The default model, without any option: the first thing that a user tries."""

from __future__ import annotations

import pytest

import trioserve


@pytest.mark.slow
async def test_the_default_model_answers_without_any_option() -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    async with trioserve.open_engine() as engine:
        async with engine.open_chat(messages) as deltas:
            (answer,) = await deltas.collect()
    assert answer.text == "The capital of France is Paris."
