"""litellm, which speaks to the server as to OpenAI, to vLLM and to Anthropic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from .city import MESSAGES, MODEL, QUESTION, City, mark_client

pytestmark = mark_client("litellm")


TOOL = {
    "type": "function",
    "function": {"name": "City", "parameters": City.model_json_schema()},
}


def ask(url: str, provider: str, **fields: Any) -> Any:
    import litellm

    return litellm.completion(
        model=f"{provider}/{MODEL}",
        api_base=url if provider == "anthropic" else f"{url}/v1",
        api_key="none",
        messages=MESSAGES,
        max_tokens=80,
        **fields,
    )


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_an_answer_has_the_form_of_a_model(default_url: str, provider: str) -> None:
    answer = ask(default_url, provider, response_format=City)
    City.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_a_tool_is_called(default_url: str, provider: str, streams: bool) -> None:
    import litellm

    choice = {"type": "function", "function": {"name": "City"}}
    answer = ask(
        default_url, provider, tools=[TOOL], tool_choice=choice, stream=streams
    )
    if streams:
        answer = litellm.stream_chunk_builder(list(answer))
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls
    City.model_validate_json(call.function.arguments)


def test_a_response_is_answered(default_url: str) -> None:
    import litellm

    response = litellm.responses(
        model=f"openai/{MODEL}",
        input=QUESTION,
        api_base=f"{default_url}/v1",
        api_key="none",
        max_output_tokens=20,
    )
    assert response.output_text


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_result_of_a_tool_goes_back(
    open_scripted: Callable[..., Any], provider: str
) -> None:
    def run(url: str) -> str:
        import litellm

        def turn(messages: list[Any]) -> Any:
            return (
                litellm.completion(
                    model=f"{provider}/fake",
                    api_base=url if provider == "anthropic" else f"{url}/v1",
                    api_key="none",
                    messages=messages,
                    tools=[TOOL],
                    max_tokens=200,
                )
                .choices[0]
                .message
            )

        first = turn(MESSAGES)
        [call] = first.tool_calls
        assert call.function.name == "get_weather"
        result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
        history = [*MESSAGES, first.model_dump(), result]
        second = turn(history)
        assert second.tool_calls[0].function.name == "final_result"
        text: str = turn([*MESSAGES]).content
        return text

    async with open_scripted() as server:
        assert await trio.to_thread.run_sync(run, server.url) == "Rome is sunny."
        starts = [start for plan in server.device.plans for start in plan.starts]
        token_bytes = server.state.engine.renderer.token_bytes
        prompt = b"".join(map(token_bytes, starts[1].prompt_token_ids)).decode()
        assert "Sunny." in prompt
