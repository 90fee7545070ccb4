"""Anthropic's official client, with a chat of the same server as the oracle."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import anthropic

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Who waits for whom?"}]
ASK: dict[str, Any] = {
    "model": "tiny-llama",
    "messages": MESSAGES,
    "max_tokens": 24,
    # The client has no argument for it any more.
    "extra_body": {"temperature": 0},
}


def test_a_message_equals_a_chat(server: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        chat = client.chat.completions.create(**ASK)
    with anthropic.Anthropic(base_url=server.url, api_key="none") as asking:
        message = asking.messages.create(**ASK)
        with asking.messages.stream(**ASK) as stream:
            text = stream.get_final_text()
    [block] = message.content
    assert block.type == "text"
    assert block.text == text == chat.choices[0].message.content
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 24
