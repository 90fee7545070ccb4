"""Tools for chat templates that have no place for them."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

import pytest

from trioserve.errors import InvalidParameter
from trioserve.render import ChatOptions, Renderer, ToolTable
from trioserve.render.text.template_form import TemplateForm
from trioserve.render.text.tool_prompt import add_tools, write_calls
from trioserve.render.tools.hermes import HermesScanner

STRINGS = "{% for m in messages %}[{{ m.role + ':' + m.content }}]{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}:"
    "{% for part in m.content %}{{ part.text }}{% endfor %}]{% endfor %}"
)
# Like Gemma's: it knows neither system messages nor results.
TURNS = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('role') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi"}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "ä {x}"}}
    for name in ("look", "say")
]
LINES = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in TOOLS)
CALLED = {
    "role": "assistant",
    "content": "I do.",
    "tool_calls": [
        {"id": "1", "function": {"name": "look", "arguments": '{"at":"ä"}'}},
        {"id": "2", "function": {"name": "say", "arguments": {"what": 1}}},
    ],
}
CALLS = (
    '<tool_call>\n{"name": "look", "arguments": {"at":"ä"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "say", "arguments": {"what": 1}}\n</tool_call>'
)
RESULTS = [
    {"role": "tool", "tool_call_id": "1", "content": "seen"},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "x"}]},
]

Load = Callable[..., Renderer]


async def render(renderer: Renderer, *messages: Any, **options: Any) -> str:
    prompt = await renderer.render_chat(messages, ChatOptions(**options))
    assert prompt.text is not None
    return prompt.text


@pytest.mark.parametrize("template", [STRINGS, PARTS])
@pytest.mark.parametrize("parser", ["auto", "hermes"])
async def test_tools_are_described_in_the_system_message(
    load_template: Load, template: str, parser: str
) -> None:
    renderer = load_template(template, tool_call_parser=parser)
    text = await render(renderer, USER, tools=TOOLS)
    assert text.startswith("[system:# Tools\n")
    assert f"<tools>\n{LINES}\n</tools>" in text
    assert text.endswith("</tool_call>][user:Hi]")
    text = await render(renderer, SYSTEM, USER, tools=TOOLS)
    assert text.startswith("[system:Be brief.\n\n# Tools\n")
    assert await render(renderer, SYSTEM, USER) == "[system:Be brief.][user:Hi]"


async def test_without_system_messages_the_user_describes_tools(
    load_template: Load,
) -> None:
    text = await render(
        load_template(TURNS), USER, {**USER, "role": "assistant"}, tools=TOOLS
    )
    assert text.startswith("[user:# Tools\n")
    assert text.endswith("</tool_call>\n\nHi][assistant:Hi]")


@pytest.mark.parametrize("template", [STRINGS, PARTS])
@pytest.mark.parametrize("tools", [(), TOOLS])
async def test_calls_become_text(
    load_template: Load, template: str, tools: Any
) -> None:
    text = await render(load_template(template), USER, CALLED, *RESULTS, tools=tools)
    assert text.endswith(f"[user:Hi][assistant:I do.\n{CALLS}][tool:seen][tool:x]")
    text = await render(load_template(template), USER, {**CALLED, "content": None})
    assert text == f"[user:Hi][assistant:{CALLS}]"


async def test_results_in_a_row_become_one_message_of_the_user(
    load_template: Load,
) -> None:
    seen, said = (
        f"<tool_response>\n{text}\n</tool_response>" for text in ("seen", "x")
    )
    text = await render(load_template(TURNS), USER, CALLED, *RESULTS, USER, RESULTS[0])
    assert text == (
        f"[user:Hi][assistant:I do.\n{CALLS}][user:{seen}\n{said}][user:Hi][user:{seen}]"
    )


async def test_another_parser_keeps_tools_refused(load_template: Load) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await render(
            load_template(STRINGS, tool_call_parser="mistral"), USER, tools=TOOLS
        )
    assert caught.value.param == "tools"


async def test_arguments_that_were_cut_off_stay_text(load_template: Load) -> None:
    cut = {"function": {"name": "look", "arguments": '{"at":"\u00e4'}}
    message = {"role": "assistant", "content": "", "tool_calls": [cut]}
    assert '"arguments": {"at":"\u00e4}' in await render(
        load_template(STRINGS), message
    )


def test_the_scanner_reads_what_is_written() -> None:
    calls = [
        {"function": {"name": "look", "arguments": '{"at":"</tool_call>\\n ä"}'}},
        {"function": {"name": "say", "arguments": "{}"}},
    ]
    written = write_calls("I do.", calls)
    assert isinstance(written, str)
    text, found = HermesScanner(ToolTable(TOOLS)).push(written, is_last=True)
    assert text == "I do."
    assert [(call.name, call.arguments) for call in found] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]


def test_the_clients_messages_stay_as_they_are() -> None:
    messages = [dict(SYSTEM), dict(USER)]
    for form in (TemplateForm(), TemplateForm(shows_system=False)):
        assert add_tools(messages, TOOLS, form) != messages
        assert messages == [SYSTEM, USER]
