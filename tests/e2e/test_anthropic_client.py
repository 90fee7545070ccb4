"""Anthropic's official client, with a chat of the same server as the oracle."""

from __future__ import annotations

from enum import Enum
from typing import Any

import openai
from pydantic import BaseModel
import pytest

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
    import anthropic

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


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Flower(BaseModel):
    color: Color
    is_large: bool


def test_an_answer_has_its_form(server: Any) -> None:
    """A random model has no wish to write JSON: only the grammar makes it do so."""
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none") as asking:
        message = asking.messages.parse(
            model="tiny-llama",
            messages=MESSAGES,
            max_tokens=200,
            output_format=Flower,
        )
    assert message.stop_reason == "end_turn"
    assert isinstance(message.parsed_output, Flower)
