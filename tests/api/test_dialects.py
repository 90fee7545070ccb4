"""Promises that the dialects of the API keep alike, each in its own words."""

from __future__ import annotations

from typing import Any, Final

import httpx2 as httpx
import pytest

from trioserve.testing.server import FakeServer
from trioserve.testing.tokenizer import IM_END

from .seen import list_grammars

PARAMETERS: Final = {"type": "object", "properties": {"at": {"type": "string"}}}
TEMPLATE = (
    "{{ tools | tojson }}<tool_call>{name, arguments}</tool_call>"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'

MESSAGES = [{"role": "user", "content": "Hello"}]
NAMES = ("look", "stop")
FLAT = [{"type": "function", "name": n, "parameters": PARAMETERS} for n in NAMES]
CHAT: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 200,
    "tools": [{"type": "function", "function": tool} for tool in FLAT],
}
RESPONSE: dict[str, Any] = {"input": "Hello", "tools": FLAT}
MESSAGE: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 200,
    "tools": [{"name": n, "input_schema": PARAMETERS} for n in NAMES],
}
NAMED = {"type": "function", "function": {"name": "stop"}}
FLAT_NAMED = {"type": "function", "name": "stop"}


@pytest.mark.parametrize(
    ("path", "body", "choice", "names"),
    [
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
    ],
)
@pytest.mark.server(
    answer=CALL, chat_template=TEMPLATE, eos_token=IM_END, max_model_len=1024
)
async def test_a_forced_call_reaches_the_device_as_a_grammar(
    server: FakeServer,
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    choice: object,
    names: tuple[str, ...],
) -> None:
    answer = await client.post(f"/v1/{path}", json=body | {"tool_choice": choice})
    assert answer.status_code == 200, answer.text
    [grammar] = list_grammars(server)
    assert grammar
    assert tuple(name for name in NAMES if f'"{name}' in grammar) == names
