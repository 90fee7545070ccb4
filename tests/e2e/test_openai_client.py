"""The official client, sync and async, with transformers' generate() as the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import trio

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "Who waits for whom?"}]


@pytest.fixture(scope="module")
def expect(model_folder: Path) -> Any:
    """Return a function: prompt ids -> generate()'s greedy continuation, as text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    def run(ids: list[int], max_tokens: int) -> str:
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            # Without a mask, generate() reads the tokenizer's first token as padding.
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_tokens,
        )
        text: str = tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        return text

    def chat(messages: list[Any], max_tokens: int) -> str:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return run(ids, max_tokens)

    run.chat = chat  # type: ignore[attr-defined]
    return run


def test_a_chat_equals_generate(client: openai.OpenAI, expect: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content == expect.chat(MESSAGES, 24)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24


def test_a_streamed_chat_equals_generate(client: openai.OpenAI, expect: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny-llama",
            messages=MESSAGES,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expect.chat(MESSAGES, 24)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_responses_equal_generate_also_those_that_continue_others(
    client: openai.OpenAI, expect: Any
) -> None:
    first = client.responses.create(
        model="tiny-llama", input=MESSAGES, max_output_tokens=24, temperature=0
    )
    assert first.output_text == expect.chat(MESSAGES, 24)
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Why?"},
    ]
    with client.responses.stream(
        model="tiny-llama",
        input="Why?",
        previous_response_id=first.id,
        max_output_tokens=24,
        temperature=0,
    ) as stream:
        text = "".join(
            e.delta for e in stream if e.type == "response.output_text.delta"
        )
    assert text == expect.chat(messages, 24)


def test_a_response_has_the_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny-llama",
        messages=MESSAGES,
        max_tokens=6,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    response = client.responses.create(
        model="tiny-llama",
        input=MESSAGES,
        max_output_tokens=6,
        temperature=0,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    expected = [e.model_dump() for e in chat.choices[0].logprobs.content or ()]
    part: Any = response.output[0].content[0]  # type: ignore[union-attr, index]
    assert [each.model_dump() for each in part.logprobs] == expected
    assert len(expected) == 6


def test_a_completion_equals_generate(client: openai.OpenAI, expect: Any) -> None:
    ids = [300, 301, 302, 40, 41]
    answer = client.completions.create(
        model="tiny-llama", prompt=ids, max_tokens=16, temperature=0
    )
    assert answer.choices[0].text == expect(ids, 16)


# The client (3.54) leaves generators of its HTTP library to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_8_chats_stream_at_once_and_each_equals_generate(
    server: Any, expect: Any
) -> None:
    texts: dict[int, str] = {}

    async def run(client: openai.AsyncOpenAI, number: int) -> None:
        messages: list[Any] = [
            {"role": "user", "content": f"Number {number} waits. " * (1 + number % 5)}
        ]
        stream = await client.chat.completions.create(
            model="tiny-llama",
            messages=messages,
            max_tokens=20 + number,
            temperature=0,
            stream=True,
        )
        texts[number] = ""
        async with stream:
            async for chunk in stream:
                texts[number] += chunk.choices[0].delta.content or ""
        assert texts[number] == expect.chat(messages, 20 + number)

    with trio.fail_after(180):
        async with (
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            trio.open_nursery() as nursery,
        ):
            for number in range(8):
                nursery.start_soon(run, client, number)
    assert len(texts) == 8


def test_logprobs_have_openais_forms(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny-llama",
        messages=MESSAGES,
        max_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 3
    for entry in content:
        best = max(entry.top_logprobs, key=lambda top: top.logprob)
        assert (entry.token, entry.logprob) == (best.token, best.logprob)
        assert entry.logprob <= 0
    completion = client.completions.create(
        model="tiny-llama",
        prompt="Once upon",
        max_tokens=2,
        logprobs=2,
        echo=True,
        temperature=0,
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert "".join(logprobs.tokens or ()) == completion.choices[0].text
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])


@pytest.mark.parametrize(
    "prompt", ["I like \U0001f336 and", [0, 0, 0, 0, 0], [300, 1, 0, 301]], ids=str
)
def test_offsets_of_tokens_index_the_text(client: openai.OpenAI, prompt: Any) -> None:
    """The offsets of a stream are the same."""
    fields: dict[str, Any] = {
        "model": "tiny-llama",
        "prompt": prompt,
        "max_tokens": 12,
        "logprobs": 0,
        "echo": True,
        "seed": 2,
        "temperature": 2.0,
    }
    [whole] = client.completions.create(**fields).choices
    assert whole.logprobs is not None
    offsets, tokens = whole.logprobs.text_offset, whole.logprobs.tokens
    assert offsets is not None and tokens is not None
    assert offsets == sorted(offsets) and offsets[-1] <= len(whole.text)
    for offset, token in zip(offsets, tokens):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert whole.text.startswith(token, offset)
    streamed: list[int] = []
    for event in client.completions.create(stream=True, **fields):
        logprobs = event.choices[0].logprobs
        streamed += (logprobs.text_offset or ()) if logprobs else ()
    assert streamed == offsets


def test_an_echo_alone_scores_a_prompt(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "tiny-llama",
        "prompt": ["Once upon a time", "a"],
        "logprobs": 2,
        "echo": True,
        "temperature": 0,
    }
    scored = client.completions.create(max_tokens=0, **fields)
    longer = client.completions.create(max_tokens=1, **fields)
    for alone, whole in zip(scored.choices, longer.choices, strict=True):
        assert alone.finish_reason == "length"
        assert whole.text.startswith(alone.text)
        assert alone.logprobs is not None and whole.logprobs is not None
        for name, values in alone.logprobs:
            assert values == getattr(whole.logprobs, name)[:-1]
    assert scored.usage is not None and scored.usage.completion_tokens == 0


def test_named_tokens_have_log_probabilities_at_each_position(
    client: openai.OpenAI,
) -> None:
    fields: dict[str, Any] = {
        "model": "tiny-llama",
        "max_tokens": 3,
        "temperature": 0,
        "extra_body": {
            "logprob_token_ids": [40, 300],
            "return_tokens_as_token_ids": True,
        },
    }
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, **fields)
    assert chat.choices[0].logprobs is not None
    for entry in chat.choices[0].logprobs.content or ():
        names = [top.token for top in entry.top_logprobs]
        # The token itself comes first, and once.
        assert names == [*dict.fromkeys([entry.token, "token_id:40", "token_id:300"])]
        assert all(top.logprob <= entry.logprob for top in entry.top_logprobs)
    completion = client.completions.create(prompt="Once upon", logprobs=0, **fields)
    assert completion.choices[0].logprobs is not None
    for sampled, top in zip(
        completion.choices[0].logprobs.tokens or (),
        completion.choices[0].logprobs.top_logprobs or (),
    ):
        assert [*top] == [*dict.fromkeys([sampled, "token_id:40", "token_id:300"])]


def test_a_prompt_may_report_the_whole_vocabulary(client: openai.OpenAI) -> None:
    ids = [300, 301, 302, 40, 41]
    answer: Any = client.completions.create(
        model="tiny-llama",
        prompt=ids,
        max_tokens=2,
        temperature=0,
        logprobs=-1,
        extra_body={"prompt_logprobs": -1},
    )
    first, *others = answer.choices[0].prompt_logprobs
    assert first is None
    for token_id, candidates in zip(ids[1:], others, strict=True):
        assert len(candidates) == 512
        ranked = sorted(candidates.values(), key=lambda each: -each["logprob"])
        assert ranked[0]["rank"] == 1
        assert next(iter(candidates)) == str(token_id)
    # Some tokens have the same text.
    assert all(len(top) == 512 for top in answer.choices[0].logprobs.top_logprobs)


def test_the_beginning_of_an_answer_is_echoed_with_its_times(
    client: openai.OpenAI,
) -> None:
    begun: list[Any] = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    fields = {"echo": True, "continue_final_message": True, "return_metrics": True}
    answer: Any = client.chat.completions.create(
        model="tiny-llama",
        messages=begun,
        max_tokens=4,
        temperature=0,
        extra_body=fields,
    )
    plain: Any = client.chat.completions.create(
        model="tiny-llama",
        messages=begun,
        max_tokens=4,
        temperature=0,
        extra_body={"continue_final_message": True},
    )
    content = answer.choices[0].message.content
    assert content == "It is" + plain.choices[0].message.content
    assert answer.metrics["tokens_per_second"] > 0
    assert answer.metrics["queue_time_ms"] >= 0
    assert not hasattr(plain, "metrics")


def test_a_seeded_request_gets_the_same_answer_in_any_batch(
    client: openai.OpenAI,
) -> None:
    def run(n: int) -> list[str]:
        answer = client.chat.completions.create(
            model="tiny-llama", messages=MESSAGES, max_tokens=12, seed=5, n=n
        )
        return [choice.message.content or "" for choice in answer.choices]

    alone = run(1)
    assert run(4)[:1] == alone
    assert len(set(run(4))) > 1


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"max_tokens": 0}, "max_tokens"), ({"temperature": -1}, "temperature")],
)
def test_errors_become_exceptions_of_the_client(
    client: openai.OpenAI, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny-llama", messages=MESSAGES, **changes)
    assert caught.value.param == param


def test_the_client_sees_the_id_of_the_request(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, max_tokens=1
    )
    assert answer.id == f"chatcmpl-{answer._request_id}"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny-llama", messages=MESSAGES, n=0)
    assert caught.value.request_id


def test_calls_for_which_the_template_has_no_place_are_written_as_text(
    client: openai.OpenAI, server: Any
) -> None:
    call: Any = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "ask", "arguments": "{}"},
    }
    talk: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "ask"}}]
    answer = client.chat.completions.create(
        model="tiny-llama",
        messages=talk,
        tools=tools,
        max_tokens=1,
        extra_body={"return_token_ids": True},
    )
    shown = httpx.post(
        f"{server.url}/tokenize", json={"messages": talk, "tools": tools}
    ).json()["tokens"]
    assert answer.prompt_token_ids == shown  # type: ignore[attr-defined]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": shown}).json()
    assert json.dumps(tools[0]) in text["prompt"]
    assert '{"name": "ask", "arguments": {}}' in text["prompt"]
    assert "tool\n42" in text["prompt"]
