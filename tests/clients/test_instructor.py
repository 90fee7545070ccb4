"""instructor, in each of its modes that forces the form of an answer."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from .city import MESSAGES, MODEL, City, mark_client

pytestmark = mark_client("instructor")


ASK: dict[str, Any] = {
    "model": MODEL,
    "response_model": City,
    "messages": MESSAGES,
    # The first answer has the form.
    "max_retries": 0,
}


@pytest.mark.parametrize(
    "mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]
)
def test_an_answer_of_openais_client_becomes_a_model(
    default_url: str, mode: str
) -> None:
    import instructor

    limit = "max_output_tokens" if mode == "RESPONSES_TOOLS" else "max_tokens"
    with openai.OpenAI(base_url=f"{default_url}/v1", api_key="none") as client:
        asking = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        answer = asking.chat.completions.create(**ASK, **{limit: 80})
    assert isinstance(answer, City)


def test_an_answer_is_streamed_into_a_model(default_url: str) -> None:
    import instructor

    with openai.OpenAI(base_url=f"{default_url}/v1", api_key="none") as client:
        asking = instructor.from_openai(client)
        seen = list(asking.chat.completions.create_partial(**ASK, max_tokens=80))
    assert len(seen) > 2
    City.model_validate(seen[-1].model_dump())


def test_an_answer_of_anthropics_client_becomes_a_model(default_url: str) -> None:
    import instructor

    with anthropic.Anthropic(base_url=default_url, api_key="none") as client:
        asking = instructor.from_anthropic(client)
        answer = asking.messages.create(**ASK, max_tokens=80)
    assert isinstance(answer, City)
