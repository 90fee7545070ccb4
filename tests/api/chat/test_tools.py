"""Tool calls in chats: in a field of their own, as OpenAI's client reads them."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import openai
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.frontend import TextParams
from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import IM_END
from trioserve.types.sampling import SamplingParams

from ..seen import list_grammars, read_prompt

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> "
    "<tool_call>{name, arguments}</tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)
# The same without a hint at the family.
PLAIN_TEMPLATE = TEMPLATE.replace("<tool_call>{name, arguments}</tool_call>", "")

FIRST = '{"city": "Wien", "days": 3}'
SECOND = "{}"
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {FIRST}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "stop", "arguments": {SECOND}}}\n</tool_call>'
)
TEXT = "I look it up."
ANSWER = f"{TEXT}\n{CALLS}"

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "Weather?"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 900}
JSON: Any = {"type": "json_object"}


pytestmark = [
    pytest.mark.server(
        answer=ANSWER, chat_template=TEMPLATE, eos_token=IM_END, max_model_len=2048
    ),
    # The client (3.54) leaves generators of its HTTP library to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BOTH = [("weather", FIRST), ("stop", SECOND)]


@pytest.fixture
def client(openai_client: openai.AsyncOpenAI) -> openai.AsyncOpenAI:
    return openai_client


def parse_by(name: Any) -> pytest.MarkDecorator:
    """Let the server of a test parse calls in the form of a family of models."""
    return pytest.mark.server(render=RenderConfig(tool_call_parser=name))


async def ask(
    client: openai.AsyncOpenAI, *, streams: bool = False, **fields: Any
) -> Any:
    """Return the answer as the official client reads it, whole or from its stream."""
    fields = {"model": "fake", **CHAT, **fields}
    if not streams:
        return await client.chat.completions.create(**fields)
    async with client.chat.completions.stream(**fields) as stream:
        try:
            return await stream.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion


def list_calls(message: Any) -> list[tuple[str, str]]:
    calls = message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls]


@pytest.mark.parametrize(
    ("text", "calls", "streams"),
    [
        pytest.param(TEXT, BOTH, True, id="both"),
        pytest.param(
            *(None, BOTH, False), marks=pytest.mark.server(answer=CALLS), id="calls"
        ),
        pytest.param(
            *(None, BOTH, True), marks=pytest.mark.server(answer=CALLS), id="stream"
        ),
        pytest.param(
            *(TEXT, [], False), marks=pytest.mark.server(answer=TEXT), id="text"
        ),
    ],
)
async def test_calls_come_in_a_field_of_their_own(
    client: openai.AsyncOpenAI, text: str | None, calls: list[Any], streams: bool
) -> None:
    answer = await ask(client, streams=streams, n=2)
    assert len(answer.choices) == 2
    ids = set()
    for choice in answer.choices:
        assert choice.message.content == text
        assert list_calls(choice.message) == calls
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        for call in choice.message.tool_calls or ():
            assert call.type == "function"
            ids.add(call.id)
    assert len(ids) == 2 * len(calls)


async def test_a_streams_chunks_have_openais_form(server: FakeServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        body = CHAT | {"stream": True, "return_token_ids": True}
        answer = await client.post("/v1/chat/completions", json=body)
    lines = [line for line in answer.text.splitlines() if line]
    assert lines.pop() == "data: [DONE]"
    choices = [json.loads(line[6:])["choices"][0] for line in lines]
    first, *deltas = [choice["delta"] for choice in choices]
    assert first == {"role": "assistant", "content": None}
    assert all(len(delta) <= 1 for delta in deltas)
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    begun = [piece for piece in pieces if "id" in piece]
    assert [(each["index"], each["type"]) for each in begun] == [
        (0, "function"),
        (1, "function"),
    ]
    for piece in pieces:
        is_first = piece in begun
        assert piece.keys() == (
            {"index", "id", "type", "function"} if is_first else {"index", "function"}
        )
        assert piece["function"].keys() == (
            {"name", "arguments"} if is_first else {"arguments"}
        )
    # The arguments of the first call arrive while they are written.
    assert len([piece for piece in pieces if piece["index"] == 0]) > 5
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    ids = [token_id for choice in choices for token_id in choice.get("token_ids", ())]
    assert tuple(ids[:-1]) == server.answer_ids


@pytest.mark.server(eos_token=None)
async def test_forbidden_parallel_calls_end_the_answer_behind_the_first(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    answer = await ask(client, parallel_tool_calls=False)
    [choice] = answer.choices
    assert choice.message.content == TEXT
    assert list_calls(choice.message) == BOTH[:1]
    assert choice.finish_reason == "tool_calls"
    assert answer.usage.completion_tokens < len(server.answer_ids)
    # The sequence has ended in the engine, too, and not at max_tokens.
    assert len(server.device.plans) < len(server.answer_ids) + 10


@pytest.mark.server(eos_token=None)
async def test_a_slow_reader_gets_one_call_as_well(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    """The engine joins tokens for a slow reader, here a whole answer in one delta."""
    engine = server.state.engine
    whole = await ask(client, parallel_tool_calls=False)
    prompt = await engine.renderer.render_chat(MESSAGES)
    num_steps = len(server.device.plans) + len(server.answer_ids)
    async with engine.open_text(
        [prompt],
        SamplingParams(max_tokens=len(server.answer_ids)),
        TextParams(parallel_tool_calls=False),
        tools=TOOLS,
    ) as stream:
        while len(server.device.plans) < num_steps:
            await trio.sleep(0.001)
        [joined] = await stream.collect()
    assert [call.name for call in joined.tool_calls] == ["weather"]
    assert joined.finish_reason == "stop"
    assert len(joined.token_ids) == whole.usage.completion_tokens


async def test_an_answer_is_cut_off_alike_in_a_stream_and_without(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    length = len(server.answer_ids)
    for num_tokens in range(length // 6, length, length // 3):
        whole = await ask(client, max_tokens=num_tokens)
        streamed = await ask(client, streams=True, max_tokens=num_tokens)
        [choice], [other] = whole.choices, streamed.choices
        assert choice.finish_reason == other.finish_reason == "length"
        assert choice.message.content == other.message.content
        assert list_calls(choice.message) == list_calls(other.message)
        for (name, arguments), whole_call in zip(list_calls(choice.message), BOTH):
            assert name == whole_call[0] and whole_call[1].startswith(arguments)
        # The beginning of a tag may be text, and what follows it may not.
        assert "<tool_call>" not in (choice.message.content or "")
        response = await client.responses.create(
            model="fake",
            input=MESSAGES,
            tools=[{"type": "function", **tool["function"]} for tool in TOOLS],
            max_output_tokens=num_tokens,
        )
        assert response.output_text == (choice.message.content or "")
        assert [
            (item.name, item.arguments)
            for item in response.output
            if item.type == "function_call"
        ] == list_calls(choice.message)


@pytest.mark.server(answer=ANSWER[: ANSWER.index("Wi") + 2])
async def test_a_call_that_was_cut_off_may_be_sent_back(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    cut = (await ask(client, max_tokens=len(server.answer_ids))).choices[0].message
    [call] = cut.tool_calls
    assert not call.function.arguments.endswith("}")
    result = {"role": "tool", "tool_call_id": call.id, "content": "not JSON"}
    messages = [*MESSAGES, cut.model_dump(exclude_none=True), result]
    answer = await ask(client, messages=messages, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.server(
    answer=f"<think>\nA <tool_call> helps.\n</think>\n\n{ANSWER}",
    render=RenderConfig(reasoning_parser="qwen3"),
)
async def test_reasoning_and_calls_come_in_one_answer(
    client: openai.AsyncOpenAI,
) -> None:
    message = (await ask(client, streams=True)).choices[0].message
    assert message.reasoning == "A <tool_call> helps."
    assert message.content == TEXT
    assert list_calls(message) == BOTH


HARMONY_TEMPLATE = TEMPLATE + "{# <|channel|> <|message|> functions. #}"
HARMONY = (
    "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant<|channel|>commentary"
    f"<|message|>{TEXT}<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.weather <|constrain|>json<|message|>{FIRST}"
)


@pytest.mark.parametrize(
    ("streams", "has_tools"), [(False, True), (True, True), (False, False)]
)
@pytest.mark.server(
    answer=HARMONY, chat_template=HARMONY_TEMPLATE.replace("<tool_call>", "")
)
async def test_the_channels_of_gpt_oss_are_split_without_an_option(
    client: openai.AsyncOpenAI, streams: bool, has_tools: bool
) -> None:
    fields: dict[str, Any] = {} if has_tools else {"tools": openai.NOT_GIVEN}
    answer = await ask(client, streams=streams, **fields)
    if not streams:
        details = answer.usage.completion_tokens_details
        assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    message = answer.choices[0].message
    assert message.reasoning == "Where?"
    assert message.content == (TEXT if has_tools else f"{TEXT}\n{FIRST}")
    assert list_calls(message) == (BOTH[:1] if has_tools else [])


@pytest.mark.server(chat_template=HARMONY_TEMPLATE, answer=HARMONY)
async def test_a_form_of_gpt_oss_is_that_of_its_final_message(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    await ask(client, response_format=JSON)
    await client.completions.create(
        model="fake", prompt="a", extra_body={"response_format": JSON}
    )
    in_channel, plain = list_grammars(server)
    assert in_channel and "final" in in_channel
    assert plain and "final" not in plain


@pytest.mark.server(chat_template=HARMONY_TEMPLATE)
async def test_the_thoughts_of_gpt_oss_have_no_budget(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError, match="reasoning_effort") as caught:
        await ask(client, extra_body={"thinking_token_budget": 5})
    assert caught.value.param == "thinking_token_budget"


async def test_a_stop_string_in_the_arguments_ends_the_call(
    client: openai.AsyncOpenAI,
) -> None:
    [choice] = (await ask(client, streams=True, stop="Wien")).choices
    assert list_calls(choice.message) == [("weather", '{"city": "')]
    assert choice.finish_reason == "tool_calls"


async def test_without_tools_a_call_is_text(client: openai.AsyncOpenAI) -> None:
    absent: Any
    for absent in ({"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}):
        [choice] = (await ask(client, **absent)).choices
        assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")


plain = pytest.mark.server(chat_template=PLAIN_TEMPLATE)


@pytest.mark.parametrize(
    "is_parsed",
    [
        pytest.param(False, marks=plain, id="auto"),
        pytest.param(False, marks=parse_by("none"), id="none"),
        pytest.param(True, marks=[plain, parse_by("hermes")], id="hermes"),
    ],
)
async def test_the_template_or_the_option_chooses_the_parser(
    client: openai.AsyncOpenAI, is_parsed: bool
) -> None:
    message = (await ask(client)).choices[0].message
    assert message.content == (TEXT if is_parsed else ANSWER)
    assert list_calls(message) == (BOTH if is_parsed else [])


QWEN_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nWien\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.mark.server(
    answer=QWEN_CALL, render=RenderConfig(tool_call_parser="qwen3_coder")
)
async def test_calls_without_json_are_forced_too(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    answer = await ask(client, tool_choice="required")
    assert list_calls(answer.choices[0].message) == [("weather", '{"city": "Wien"}')]
    [grammar] = list_grammars(server)
    assert grammar and "<parameter=" in grammar


@parse_by("none")
async def test_limits_that_the_parser_does_not_allow_are_refused(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    fields: Any = {"parallel_tool_calls": False, "tool_choice": "required"}
    for field, value in fields.items():
        with pytest.raises(openai.BadRequestError, match="--tool-call-parser") as e:
            await ask(client, **{field: value})
        assert e.value.param == field
    assert not server.device.plans


@pytest.mark.server(answer=CALLS)
async def test_a_result_goes_back_to_the_model(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    """The whole round: a call, its result, and the answer."""
    message = (await ask(client)).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
        for number, call in enumerate(message.tool_calls)
    ]
    await ask(client, messages=[*MESSAGES, message, *results], tools=openai.NOT_GIVEN)
    assert read_prompt(server) == (
        '[user:Weather?][assistant:<weather {"city": "Wien", "days": 3}><stop {}>]'
        "[tool:result 0][tool:result 1]"
    )


async def test_the_model_does_not_see_tools_that_are_not_allowed(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    named = {"type": "function", "function": {"name": "stop"}}
    allowed = {"mode": "auto", "tools": [named]}
    answer = await ask(
        client, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert list_calls(answer.choices[0].message) == BOTH
    assert list_grammars(server) == [None]
    text = read_prompt(server)
    assert '"stop"' in text and '"weather"' not in text


async def test_a_form_of_the_text_leaves_forced_calls_as_they_are(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    """Some clients send both, for the case that there is text."""
    for form in ({}, {"response_format": JSON}):
        answer = await ask(client, tool_choice="required", **form)
        assert list_calls(answer.choices[0].message) == BOTH
    plain, with_form = list_grammars(server)
    assert plain is not None
    assert plain == with_form


@pytest.mark.server(answer=CALLS)
async def test_an_answer_with_a_form_may_call_instead(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    [choice] = (await ask(client, streams=True, response_format=JSON)).choices
    assert list_calls(choice.message) == BOTH
    assert not choice.message.content
    assert choice.finish_reason == "tool_calls"
    [grammar] = list_grammars(server)
    assert grammar and "tool_call" in grammar and "weather" in grammar


@pytest.mark.server(answer=json.dumps({"note": CALLS}))
async def test_an_answer_with_a_form_may_have_calls_in_its_strings(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    message = (await ask(client, response_format=JSON)).choices[0].message
    assert (message.content, message.tool_calls) == (server.answer, None)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"response_format": JSON}, marks=parse_by("llama3_json")),
        pytest.param({"response_format": JSON}, marks=parse_by("none")),
        {"structured_outputs": {"regex": ".*"}},
    ],
)
async def test_other_answers_with_a_form_have_no_calls(
    server: FakeServer, client: openai.AsyncOpenAI, form: dict[str, Any]
) -> None:
    answer = await ask(client, extra_body=form)
    assert not answer.choices[0].message.tool_calls
    [grammar] = list_grammars(server)
    assert grammar and "weather" not in grammar


async def test_a_tool_that_no_grammar_can_have_is_refused_beside_a_form(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    schema = {"type": "object", "not": {}}
    function = {"name": "f", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}]
    with pytest.raises(openai.BadRequestError, match="not") as caught:
        await ask(client, tools=tools, response_format=JSON)
    assert caught.value.param == "tools[0].function.parameters"
    assert not server.device.plans
    # A tool that is not strict does not bind the arguments, as without a form.
    function["strict"] = False
    await ask(client, tools=tools, response_format=JSON)


async def test_two_tools_of_one_name_cannot_be_forced(
    server: FakeServer, client: openai.AsyncOpenAI
) -> None:
    twice = [TOOLS[0], TOOLS[0]]
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, tool_choice="required", tools=twice)
    assert caught.value.param == "tools[1].function.name"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(
            model="fake",
            input="hi",
            tool_choice="required",
            tools=[{"type": "function", **each["function"]} for each in twice],
        )
    assert caught.value.param == "tools[1].name"
    assert not server.device.plans
    await ask(client, tools=twice)
