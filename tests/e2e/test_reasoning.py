"""The default model, with a template that makes it reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from trioserve.testing.tokenizer import CHATML_TEMPLATE

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(
    start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    template = tmp_path_factory.mktemp("template") / "think.jinja"
    template.write_text(CHATML_TEMPLATE + "{{ '<think>\n' }}")
    return start_server(
        *("--reasoning-parser", "qwen3", "--chat-template", str(template)),
        *("--kv-cache-memory", "64MiB", "--no-engine-process"),
    )


def test_the_answer_of_a_model_that_does_not_end_its_reasoning_is_reasoning(
    client: openai.OpenAI,
) -> None:
    """The model was never trained to end its reasoning."""
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct", messages=MESSAGES, max_tokens=5
    )
    message: Any = answer.choices[0].message
    assert message.reasoning == "The capital of France is"
    assert message.content == ""
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize("budget", [0, 3])
def test_a_model_must_answer_when_its_reasoning_budget_is_used_up(
    client: openai.OpenAI, budget: int
) -> None:
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=MESSAGES,
        max_tokens=30,
        extra_body={"thinking_token_budget": budget, "return_token_ids": True},
    )
    choice: Any = answer.choices[0]
    assert choice.message.reasoning == ("The capital of" if budget else None)
    assert choice.message.content.strip()
    assert "think>" not in choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    num_tag_tokens = (answer.usage.completion_tokens_details.reasoning_tokens or 0) - (
        budget
    )
    assert 0 < num_tag_tokens < 5
