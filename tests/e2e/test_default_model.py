"""The default model, without any option: the first thing that a user tries."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import trioserve

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.slow
async def test_the_default_model_answers_and_calls_without_any_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="trioserve")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    async with trioserve.open_engine() as engine:
        async with engine.open_chat(messages) as deltas:
            (answer,) = await deltas.collect()
        assert answer.text == "The capital of France is Paris."
        assert "unless a request says otherwise: temperature 0, " in caplog.text
        assert "sequences end after 4 copies" in caplog.text
        # Without its sampling defaults the model would write 157 tokens instead of 15.
        messages = [{"role": "user", "content": "What is two plus two?"}]
        async with engine.open_chat(messages, max_tokens=100) as deltas:
            (answer,) = await deltas.collect()
        assert answer.finish_reason == "stop"
        # Its template has no place for tools.
        messages = [{"role": "user", "content": "What is the weather in Rome?"}]
        async with engine.open_chat(
            messages,
            tools=[TOOL],
            forced_tools=frozenset({"get_weather"}),
            parallel_tool_calls=False,
        ) as deltas:
            (answer,) = await deltas.collect()
    (call,) = answer.tool_calls
    assert call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Rome"}
