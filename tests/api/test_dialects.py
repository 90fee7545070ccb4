"""Promises that the dialects of the API keep alike, each in its own words."""

from __future__ import annotations

from typing import Any, Final

import httpx2 as httpx
import pytest

from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import IM_END

from .seen import list_grammars, list_starts, read_prompt

PARAMETERS: Final = {"type": "object", "properties": {"at": {"type": "string"}}}
TEMPLATE = (
    "{{ tools | tojson }}<tool_call>{name, arguments}</tool_call>"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'

pytestmark = pytest.mark.server(
    answer=CALL, chat_template=TEMPLATE, eos_token=IM_END, max_model_len=1024
)

MESSAGES = [{"role": "user", "content": "Hello"}]
NAMES = ("look", "stop")
FUNCTIONS = [{"name": name, "parameters": PARAMETERS} for name in NAMES]
CHAT: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 200,
    "tools": [{"type": "function", "function": each} for each in FUNCTIONS],
}
RESPONSE: dict[str, Any] = {
    "input": "Hello",
    "tools": [{"type": "function", **each} for each in FUNCTIONS],
}
MESSAGE: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 200,
    "tools": [{"name": n, "input_schema": PARAMETERS} for n in NAMES],
}
NAMED = {"type": "function", "function": {"name": "stop"}}
FLAT_NAMED = {"type": "function", "name": "stop"}


async def test_a_forced_call_reaches_the_device_as_a_grammar(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    rows: list[tuple[str, dict[str, Any], object, tuple[str, ...]]] = [
        ("chat/completions", CHAT, "required", NAMES),
        ("chat/completions", CHAT, NAMED, ("stop",)),
        (
            *("chat/completions", CHAT),
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [NAMED]},
            },
            ("stop",),
        ),
        ("responses", RESPONSE, "required", NAMES),
        ("responses", RESPONSE, FLAT_NAMED, ("stop",)),
        (
            *("responses", RESPONSE),
            {"type": "allowed_tools", "mode": "required", "tools": [FLAT_NAMED]},
            ("stop",),
        ),
        ("messages", MESSAGE, {"type": "any"}, NAMES),
        ("messages", MESSAGE, {"type": "tool", "name": "stop"}, ("stop",)),
    ]
    for path, body, choice, names in rows:
        answer = await client.post(f"/v1/{path}", json=body | {"tool_choice": choice})
        assert answer.status_code == 200, answer.text
        grammar = list_grammars(server)[-1]
        assert grammar, (path, choice)
        assert tuple(name for name in NAMES if f'"{name}' in grammar) == names
    assert len(list_grammars(server)) == len(rows)


AT_SEA = {"at": "sea"}
CALLED = {"name": "look", "arguments": '{"at": "sea"}'}
CONVERSATION: Final[dict[str, dict[str, Any]]] = {
    "v1/chat/completions": CHAT
    | {
        "messages": [
            {"role": "system", "content": "Be kind."},
            *MESSAGES,
            {
                "role": "assistant",
                "reasoning": "Hm.",
                "content": "I look.",
                "tool_calls": [{"id": "t1", "function": CALLED}],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "Blue."},
            {"role": "user", "content": "And?"},
        ]
    },
    "v1/responses": RESPONSE
    | {
        "instructions": "Be kind.",
        "input": [
            *MESSAGES,
            {"type": "reasoning", "content": "Hm."},
            {"role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "t1", **CALLED},
            {"type": "function_call_output", "call_id": "t1", "output": "Blue."},
            {"role": "user", "content": "And?"},
        ],
    },
    "api/chat": {
        "model": "fake",
        "stream": False,
        "tools": CHAT["tools"],
        "messages": [
            {"role": "system", "content": "Be kind."},
            *MESSAGES,
            {
                "role": "assistant",
                "thinking": "Hm.",
                "content": "I look.",
                "tool_calls": [{"function": {"name": "look", "arguments": AT_SEA}}],
            },
            {"role": "tool", "tool_name": "look", "content": "Blue."},
            {"role": "user", "content": "And?"},
        ],
    },
    "v1/messages": MESSAGE
    | {
        "system": "Be kind.",
        "messages": [
            *MESSAGES,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": AT_SEA},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "Blue."},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    },
}


async def test_a_conversation_has_the_same_prompt_in_each_dialect(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for path, body in CONVERSATION.items():
        answer = await client.post(f"/{path}", json=body)
        assert answer.status_code == 200, answer.text
    prompts = [start.prompt_token_ids for start in list_starts(server)]
    assert len(prompts) == len(CONVERSATION) and len({*prompts}) == 1
    assert '<think>Hm.</think><call>look{"at": "sea"}</call>' in read_prompt(server)
    counted = {k: v for k, v in body.items() if k != "max_tokens"}
    answer = await client.post("/v1/messages/count_tokens", json=counted)
    assert answer.json() == {"input_tokens": len(prompts[0])}


async def test_a_last_turn_of_the_assistant_is_continued(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    """Anthropic's API and Ollama's have no field for that."""
    messages = [*MESSAGES, {"role": "assistant", "content": "The"}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    await client.post("/v1/messages", json=MESSAGE | {"messages": messages})
    ollama = CONVERSATION["api/chat"] | {"messages": messages}
    await client.post("/api/chat", json=ollama)
    chat = CHAT | {"messages": messages} | options
    await client.post("/v1/chat/completions", json=chat)
    assert len({start.prompt_token_ids for start in list_starts(server)}) == 1
    assert read_prompt(server).endswith("assistant\nThe")
