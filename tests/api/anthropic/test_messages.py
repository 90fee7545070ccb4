"""Anthropic's API over real sockets, by its official client and without one."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
import httpx2 as httpx
import pytest
import trio

from trioserve.config import HttpConfig, RenderConfig
from trioserve.errors import EngineDied
from trioserve.testing.processors import save_tiny_processor
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import IM_END

from ..seen import list_starts, read_prompt

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic as Client

REASONING = "Hm, the dog sleeps."
TEXT = "The quick brown fox."
HELLO: Any = [{"role": "user", "content": "Hello"}]
ASK: Any = {"model": "fake", "max_tokens": 100, "messages": HELLO}
PATH = "/v1/messages"
TOOL = {
    "name": "look",
    "description": "Look around.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}

# A template with a place for everything that the API takes.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

pytestmark = [
    pytest.mark.server(answer=TEXT, eos_token=IM_END),
    # The client leaves generators of its HTTP library to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

thinks = pytest.mark.server(
    answer=f"<think>\n{REASONING}\n</think>\n\n{TEXT}",
    render=RenderConfig(reasoning_parser="qwen3"),
)


@pytest.fixture
def client(anthropic_client: Client) -> Client:
    return anthropic_client


async def post(server: FakeServer, body: object, path: str = PATH) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        return await client.post(path, json=body)


async def stream(server: FakeServer, body: dict[str, Any]) -> list[Any]:
    """Return the data of all events; the name of each is its type."""
    text = (await post(server, body | {"stream": True})).text
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_message_is_answered_whole(server: FakeServer, client: Client) -> None:
    message = await client.messages.create(**ASK)
    [block] = message.content
    assert block.type == "text" and block.text == TEXT
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.type, message.role, message.model) == (
        *("message", "assistant", "fake"),
    )
    assert message._request_id is not None
    assert message.id == f"msg_{message._request_id}"
    assert message.usage.output_tokens == len(server.answer_ids) + 1


async def test_the_events_of_a_stream_have_their_order(server: FakeServer) -> None:
    events = await stream(server, ASK)
    names = [event["type"] for event in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    message = events[0]["message"]
    assert message["content"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    assert "".join(event["delta"]["text"] for event in events[3:-3]) == TEXT
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize(
    ("fields", "display"),
    [
        ({}, "omitted"),
        ({"stop_sequences": ["fox"]}, "summarized"),
        ({"max_tokens": 12}, "summarized"),
    ],
)
@thinks
async def test_a_stream_adds_up_to_the_whole_message(
    client: Client, fields: dict[str, Any], display: str
) -> None:
    body = ASK | {"thinking": {"type": "adaptive", "display": display}} | fields
    whole = (await client.messages.create(**body)).to_dict()
    async with client.messages.stream(**body) as events:
        streamed = (await events.get_final_message()).to_dict()
    for field in ("type", "role", "model", "stop_reason", "stop_sequence"):
        assert whole[field] == streamed[field]
    blocks: Any = [whole["content"], streamed["content"]]
    for block in (*blocks[0], *blocks[1]):
        # The id of the message.
        if block["type"] == "thinking":
            assert block.pop("signature").startswith("msg_")
    assert blocks[0] == blocks[1]
    tokens: Any = [whole["usage"], streamed["usage"]]
    assert tokens[0]["output_tokens"] == tokens[1]["output_tokens"]
    assert tokens[0]["output_tokens_details"] == tokens[1]["output_tokens_details"]
    assert tokens[0]["output_tokens_details"]["thinking_tokens"] > 0


@thinks
async def test_reasoning_is_a_block_of_its_own(
    server: FakeServer, client: Client
) -> None:
    message = await client.messages.create(
        **ASK, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    first, second = message.content
    assert first.type == "thinking" and first.thinking == REASONING
    assert first.signature == message.id
    assert second.type == "text" and second.text == TEXT
    [start] = list_starts(server)
    assert start.sampling.reasoning_budget.num_tokens == 1024
    hidden = await client.messages.create(
        **ASK, thinking={"type": "adaptive", "display": "omitted"}
    )
    assert hidden.content[0].type == "thinking"
    assert hidden.content[0].thinking == ""


async def test_a_stop_sequence_is_named(client: Client) -> None:
    message = await client.messages.create(**ASK, stop_sequences=["dog", "brown"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "brown")
    assert message.content[0].to_dict() == {"type": "text", "text": "The quick "}


@pytest.mark.server(eos_token=None)
async def test_max_tokens_beyond_the_context_ends_where_the_context_does(
    client: Client,
) -> None:
    short = await client.messages.create(**ASK | {"max_tokens": 3})
    assert short.stop_reason == "max_tokens"
    long = await client.messages.create(**ASK | {"max_tokens": 20_000})
    assert long.stop_reason == "model_context_window_exceeded"
    usage = long.usage
    assert usage.cache_read_input_tokens is not None
    num_prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert num_prompt + usage.output_tokens == 256


async def test_cached_tokens_are_no_input_tokens(client: Client) -> None:
    ask = ASK | {"messages": [{"role": "user", "content": "Hello. " * 20}]}
    count = await client.messages.count_tokens(model="fake", messages=ask["messages"])
    first = (await client.messages.create(**ask)).usage
    second = (await client.messages.create(**ask)).usage
    assert (first.input_tokens, first.cache_read_input_tokens) == (
        *(count.input_tokens, 0),
    )
    assert second.cache_read_input_tokens
    assert second.cache_creation_input_tokens == 0
    total = second.input_tokens + second.cache_read_input_tokens
    assert total == count.input_tokens


@pytest.mark.slow
async def test_an_image_is_the_same_as_in_a_chat(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    before = {"type": "text", "text": "What is this?"}

    def body(image: object, *earlier: object) -> Any:
        message = {"role": "user", "content": [before, image]}
        return {"model": "fake", "max_tokens": 2, "messages": [*earlier, message]}

    def source(data: str) -> Any:
        fields = {"type": "base64", "media_type": "image/png", "data": data}
        return {"type": "image", "source": fields}

    url = {"url": f"data:image/png;base64,{data}"}
    folder = save_tiny_processor("qwen2_vl", tmp_path)
    async with open_fake_server(
        folder, takes_images=True, max_model_len=1024
    ) as server:
        chat = await post(
            server,
            body({"type": "image_url", "image_url": url}),
            "/v1/chat/completions",
        )
        usage = (await post(server, body(source(data)))).json()["usage"]
        broken = (await post(server, body(source("QUJD"), *HELLO))).json()["error"]
    # The cache knows the image by its bytes.
    assert usage["cache_read_input_tokens"]
    num_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert num_tokens == chat.json()["usage"]["prompt_tokens"]
    assert broken["message"].startswith("messages[1].content[1]: ")


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.server(
    answer=f"I look.\n{CALL}\n{CALL}",
    render=RenderConfig(tool_call_parser="hermes"),
    chat_template=TEMPLATE,
    max_model_len=1024,
)
async def test_calls_are_blocks_and_their_results_are_taken(
    server: FakeServer, client: Client, parallel: bool
) -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": not parallel}
    ask = ASK | {"max_tokens": 500, "tools": [TOOL], "tool_choice": choice}
    message = await client.messages.create(**ask)
    async with client.messages.stream(**ask) as events:
        streamed = await events.get_final_message()
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "Blue."}
        for block in message.content
        if block.type == "tool_use"
    ]
    history = [*HELLO, message.to_param(), {"role": "user", "content": results}]
    await client.messages.create(**ask | {"messages": history})
    prompt = read_prompt(server)
    assert (message.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
    for answer in (message, streamed):
        text, *calls = answer.content
        assert text.type == "text" and text.text.strip() == "I look."
        assert len(calls) == (2 if parallel else 1)
        for call in calls:
            assert call.type == "tool_use"
            assert (call.name, call.input) == ("look", {"at": "sea"})
            assert call.id
    assert prompt.count('<call>look{"at": "sea"}</call>') == len(results)
    assert prompt.count("<|im_start|>tool\nBlue.<|im_end|>") == len(results)


async def test_errors_become_exceptions_of_the_client(
    server: FakeServer, client: Client
) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**ASK | {"model": "claude"})
    assert missing.value.type == "not_found_error"
    assert missing.value.api_message == (
        "The model `claude` does not exist; this server has `fake`."
    )
    body: Any = missing.value.body
    assert body["type"] == "error"
    assert body["request_id"] == missing.value.request_id
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await client.messages.create(**ASK, extra_body={"temperature": 1000})
    assert wrong.value.type == "invalid_request_error"
    assert wrong.value.api_message is not None
    assert wrong.value.api_message.startswith("temperature: must be between")
    schema = {"type": "object", "not": {}}
    with pytest.raises(anthropic.BadRequestError) as formless:
        await client.messages.create(
            **ASK, output_config={"format": {"type": "json_schema", "schema": schema}}
        )
    assert formless.value.api_message is not None
    assert formless.value.api_message.startswith("output_config.format.schema: ")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
        await client.messages.create(
            **ASK | {"messages": [{"role": "user", "content": "word " * 1000}]}
        )
    server.state.engine = None
    with pytest.raises(anthropic.OverloadedError) as closed:
        await client.messages.create(**ASK)
    assert closed.value.type == "overloaded_error"
    assert closed.value.response.headers["retry-after"] == "10"


@pytest.mark.server(max_queued_requests=0, step_seconds=0.05, eos_token=None)
async def test_too_many_requests_are_limited_by_rate(
    server: FakeServer, client: Client
) -> None:
    import anthropic

    async with trio.open_nursery() as nursery:
        filling = {"prompt": [5, 6], "n": 32, "max_tokens": 100}
        nursery.start_soon(post, server, filling, "/v1/completions")
        while server.engine.statistics().num_streams == 0:
            await trio.lowlevel.checkpoint()
        with pytest.raises(anthropic.RateLimitError) as full:
            await client.messages.create(**ASK)
        nursery.cancel_scope.cancel()
    assert full.value.type == "rate_limit_error"
    assert int(full.value.response.headers["retry-after"]) >= 1


@pytest.mark.server(http=HttpConfig(max_body_size="4KiB"))
async def test_errors_before_the_handler_have_the_same_shape(
    server: FakeServer,
) -> None:
    for method, path, content, status, kind in [
        ("POST", PATH, b"{", 400, "invalid_request_error"),
        ("POST", PATH, b"x" * 5000, 413, "request_too_large"),
        ("GET", PATH, b"", 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", b"{}", 404, "not_found_error"),
        ("POST", f"{PATH}/count_tokens", b"{}", 400, "invalid_request_error"),
    ]:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            headers = {"content-type": "application/json"}
            response = await client.request(
                method, path, content=content, headers=headers
            )
        assert response.status_code == status
        body = response.json()
        assert body.keys() == {"type", "error", "request_id"}
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert body["request_id"] == response.headers["request-id"]


@pytest.mark.server(eos_token=None, step_seconds=0.02)
async def test_a_stream_may_end_with_an_error(
    server: FakeServer, client: Client
) -> None:
    import anthropic

    with pytest.raises(anthropic.APIStatusError) as failed:
        async with client.messages.stream(**ASK) as events:
            async for _ in events:
                server.engine.close_requests(EngineDied())
    assert failed.value.type == "api_error"
    assert failed.value.api_message == "The engine failed."
