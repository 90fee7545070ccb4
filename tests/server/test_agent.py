"""A coding agent's loop over a scripted model: read a file, edit it, answer.

The official clients speak to the server, the tools are functions, and the file is real. The
loop is the same by chats, by responses and by Anthropic's messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from trioserve.config import HttpConfig, RenderConfig
from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import IM_END

# The client leaves generators of its HTTP library to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def call(name: str, **arguments: str) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


SCRIPT = (
    f"<think>\nI look first.\n</think>\n\nLet me see.\n{call('read', file='a.py')}",
    call("edit", file="a.py", old="True", new="False")
    + "\n"
    + call("read", file="a.py"),
    "It is False now.",
)


pytestmark = [
    # The client leaves generators of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.server(
        http=HttpConfig(ignore_unknown_tools=True),
        render=RenderConfig(reasoning_parser="qwen3", tool_call_parser="hermes"),
        answer=SCRIPT,
        eos_token=IM_END,
        chat_template=TEMPLATE,
        max_model_len=4096,
    ),
]


class Workshop:
    """A folder and the tools that a model has for its files.

    Attributes:
      seen: the names of the tools that ran, in order.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: list[str] = []

    def read(self, file: str) -> str:
        return (self._folder / file).read_text()

    def edit(self, file: str, old: str, new: str) -> str:
        path = self._folder / file
        path.write_text(path.read_text().replace(old, new))
        return "Done."

    def run(self, name: str, arguments: str) -> str:
        """Run a tool; the arguments are JSON, as the model wrote them."""
        self.seen.append(name)
        tools: dict[str, Callable[..., str]] = {"read": self.read, "edit": self.edit}
        return tools[name](**json.loads(arguments))


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    (tmp_path / "a.py").write_text("ok = True\n")
    return Workshop(tmp_path)


@pytest.fixture
async def openai_client(server: FakeServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0
    ) as client:
        yield client


@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_reads_edits_and_answers(
    server: FakeServer, shop: Workshop, streams: bool
) -> None:
    import anthropic

    @anthropic.beta_async_tool
    async def read(file: str) -> str:
        """Read a file."""
        shop.seen.append("read")
        return shop.read(file)

    @anthropic.beta_async_tool
    async def edit(file: str, old: str, new: str) -> str:
        """Replace a text in a file."""
        shop.seen.append("edit")
        return shop.edit(file, old, new)

    question: Any = [{"role": "user", "content": "Make it false."}]
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="any", max_retries=0
    ) as client:
        runner: Any = client.beta.messages.tool_runner(
            model="fake",
            max_tokens=1024,
            system="You edit files.",
            messages=question,
            tools=[read, edit],
            stream=streams,
        )
        last = await runner.until_done()
    assert shop.read("a.py") == "ok = False\n"
    # Tools of one answer may run at once.
    assert shop.seen[0] == "read"
    assert sorted(shop.seen[1:]) == ["edit", "read"]
    assert last.stop_reason == "end_turn"
    [block] = last.content
    assert block.text == "It is False now."
    check_last_prompt(server)


def read_last_prompt(server: FakeServer) -> str:
    starts = [start for plan in server.device.plans for start in plan.starts]
    token_bytes = server.state.engine.renderer.token_bytes
    return b"".join(map(token_bytes, starts[-1].prompt_token_ids)).decode()


def check_last_prompt(server: FakeServer, last_result: str = "Done.") -> None:
    """Check that the template has shown the model its thoughts, calls and results."""
    prompt = read_last_prompt(server)
    assert "<think>I look first.</think>Let me see." in prompt
    assert prompt.count("<tool_call>") == 3
    assert "<|im_start|>tool\nok = True\n<|im_end|>" in prompt
    assert "<|im_start|>tool\nDone.<|im_end|>" in prompt
    assert f"<|im_start|>tool\n{last_result}" in prompt


FUNCTIONS = [
    {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {field: {"type": "string"} for field in fields},
            "required": fields,
        },
    }
    for name, fields in {"read": ["file"], "edit": ["file", "old", "new"]}.items()
]


async def run_chats(client: Any, shop: Workshop, streams: bool) -> str:
    """Run the loop by chats; returns the last answer."""
    body: dict[str, Any] = {
        "model": "fake",
        "messages": [{"role": "user", "content": "Make it false."}],
        "tools": [{"type": "function", "function": each} for each in FUNCTIONS],
    }
    while True:
        if streams:
            async with client.chat.completions.stream(**body) as stream:
                answer = (await stream.get_final_completion()).choices[0]
        else:
            answer = (await client.chat.completions.create(**body)).choices[0]
        message = answer.message
        if answer.finish_reason != "tool_calls":
            return str(message.content)
        body["messages"].append(message)
        for call in message.tool_calls:
            result = shop.run(call.function.name, call.function.arguments)
            body["messages"].append(
                {"role": "tool", "tool_call_id": call.id, "content": result}
            )


async def run_responses(client: Any, shop: Workshop, streams: bool) -> str:
    """Run the loop by responses that continue each other; returns the last answer."""
    body: dict[str, Any] = {
        "model": "fake",
        "input": "Make it false.",
        "tools": [{"type": "function", **each} for each in FUNCTIONS],
    }
    while True:
        if streams:
            async with client.responses.stream(**body) as stream:
                response = await stream.get_final_response()
        else:
            response = await client.responses.create(**body)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        body["previous_response_id"] = response.id
        body["input"] = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": shop.run(call.name, call.arguments),
            }
            for call in calls
        ]


# Tools that Codex sends beside its functions.
UNKNOWN_TOOLS: Any = [
    {"type": "local_shell"},
    {"type": "web_search", "external_web_access": False},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
    },
]


def codex_message(role: str, text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
    }


async def run_codex(client: Any, shop: Workshop) -> str:
    """Run the loop with the requests of Codex, which sends the whole history again."""
    items: list[Any] = [
        codex_message("developer", "<permissions>Read and write.</permissions>"),
        codex_message("user", "<environment_context>...</environment_context>"),
        codex_message("user", "Make it false."),
    ]
    functions = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
    while True:
        events = await client.responses.create(
            model="fake",
            instructions="You are a coding agent.",
            input=items,
            tools=[functions[0], *UNKNOWN_TOOLS, functions[1]],
            tool_choice="auto",
            parallel_tool_calls=True,
            reasoning={"effort": "xhigh", "summary": "detailed"},
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            service_tier="priority",
            prompt_cache_key="0199a213-81c0-7800-8aa1-bbab2a035a53",
            text={"verbosity": "low"},
            extra_body={"client_metadata": {"x-codex-installation-id": "1"}},
        )
        done = [
            event.item async for event in events if event.type.endswith("item.done")
        ]
        for item in done:
            fields = item.model_dump(exclude_none=True, exclude={"id", "status"})
            if item.type == "reasoning":
                # It keeps no reasoning that is not encrypted.
                fields |= {"summary": [], "encrypted_content": None}
                del fields["content"]
            items.append(fields)
        calls = [item for item in done if item.type == "function_call"]
        if not calls:
            return str(done[-1].content[0].text)
        items += (
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": shop.run(call.name, call.arguments),
            }
            for call in calls
        )


async def test_codex_does_the_same(
    server: FakeServer, openai_client: openai.AsyncOpenAI, shop: Workshop
) -> None:
    assert await run_codex(openai_client, shop) == "It is False now."
    assert shop.read("a.py") == "ok = False\n"
    assert shop.seen == ["read", "edit", "read"]
    prompt = read_last_prompt(server)
    assert "local_shell" not in prompt and "apply_patch" not in prompt
    assert prompt.count("<tool_call>") == 3


@pytest.mark.server(http=HttpConfig())
async def test_tools_that_are_not_run_here_are_named(
    openai_client: openai.AsyncOpenAI,
) -> None:
    create = openai_client.responses.create
    described = ("'local_shell'", "'web_search'", "'custom' ('apply_patch')")
    for tool, kind in zip(UNKNOWN_TOOLS, described, strict=True):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="fake", input="Hi", tools=[tool])
        assert caught.value.param == "tools[0].type"
        assert f"a tool of the type {kind}" in caught.value.message
        assert "--ignore-unknown-tools" in caught.value.message


@pytest.mark.parametrize(
    ("run", "streams"), [(run_chats, True), (run_responses, False)]
)
async def test_an_agent_of_openais_client_does_the_same(
    server: FakeServer,
    openai_client: openai.AsyncOpenAI,
    shop: Workshop,
    run: Any,
    streams: bool,
) -> None:
    assert await run(openai_client, shop, streams) == "It is False now."
    assert shop.read("a.py") == "ok = False\n"
    assert shop.seen == ["read", "edit", "read"]
    # The second look sees the edit, because this agent runs its tools one by one.
    check_last_prompt(server, last_result="ok = False")
