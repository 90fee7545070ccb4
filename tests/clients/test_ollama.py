"""Ollama's own client, asking the default model and a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from .city import MESSAGES, MODEL, QUESTION, City, mark_client

pytestmark = mark_client("ollama")

LIMIT: Any = {"num_predict": 8}


@pytest.fixture(scope="module")
def client(default_url: str) -> Any:
    import ollama

    return ollama.Client(host=default_url)


def test_a_chat_is_the_same_at_once_and_as_a_stream(client: Any) -> None:
    whole = client.chat(model=MODEL, messages=MESSAGES, options=LIMIT)
    parts = list(
        client.chat(model=MODEL, messages=MESSAGES, options=LIMIT, stream=True)
    )
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (parts[-1].done, parts[-1].done_reason) == (True, "length")
    assert parts[-1].eval_count == whole.eval_count == 8
    assert whole.total_duration >= whole.eval_duration > 0


def test_an_answer_has_the_form_of_a_model(client: Any) -> None:
    chat = client.chat(
        model=MODEL, messages=MESSAGES, format=City.model_json_schema(), think=False
    )
    City.model_validate_json(chat.message.content)
    answer = client.generate(
        model=MODEL, prompt=QUESTION, format="json", options={"num_predict": 4}
    )
    assert answer.response.lstrip().startswith("{")


def test_a_prompt_is_answered_with_log_probabilities(client: Any) -> None:
    for fields in ({}, {"raw": True}, {"system": "Answer in one word."}):
        answer = client.generate(
            model=f"{MODEL}:latest",
            prompt="One, two, three,",
            options={"num_predict": 3, "temperature": 0, "repeat_penalty": 1},
            logprobs=True,
            top_logprobs=2,
            **fields,
        )
        assert "".join(each.token for each in answer.logprobs) == answer.response
        assert len(answer.logprobs) == 3
        for each in answer.logprobs:
            assert each.top_logprobs[0].token == each.token


def test_the_model_is_listed_shown_and_loaded(client: Any) -> None:
    [listed] = client.list().models
    assert listed.model == MODEL and listed.size > 10**6
    [loaded] = client.ps().models
    assert loaded.digest == listed.digest
    shown = client.show(MODEL)
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == loaded.context_length
    assert shown.capabilities == ["completion", "tools"]
    assert client.generate(model=MODEL).done_reason == "load"


def test_errors_are_read(client: Any) -> None:
    import ollama

    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="other", messages=MESSAGES)
    assert caught.value.status_code == 404
    assert caught.value.error.startswith("model 'other' not found")
    with pytest.raises(ollama.ResponseError, match=r"options.num_gpu"):
        client.chat(model=MODEL, messages=MESSAGES, options={"num_gpu": 1})


async def test_a_result_of_a_tool_goes_back(open_scripted: Callable[..., Any]) -> None:
    def get_weather(city: str) -> str:
        """Get the weather.

        Args:
          city: its name.
        """
        return f"{city} is warm."

    def run(url: str) -> str:
        import ollama

        client = ollama.Client(host=url)
        history: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]
        first = client.chat(model="fake", messages=history, tools=[get_weather])
        [call] = first.message.tool_calls
        result = get_weather(**call.function.arguments)
        history += [
            first.message,
            {"role": "tool", "tool_name": call.function.name, "content": result},
        ]
        parts = client.chat(
            model="fake", messages=history, tools=[get_weather], stream=True
        )
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert [call.function.name for call in calls] == ["final_result"]
        text: str = client.chat(model="fake", messages=history).message.content
        return text

    async with open_scripted() as server:
        assert await trio.to_thread.run_sync(run, server.url) == "Rome is sunny."
        starts = [start for plan in server.device.plans for start in plan.starts]
        token_bytes = server.state.engine.renderer.token_bytes
        prompt = b"".join(map(token_bytes, starts[1].prompt_token_ids)).decode()
        assert "Rome is warm." in prompt
