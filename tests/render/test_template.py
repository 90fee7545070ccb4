"""Chat templates: their inputs, their forms, and templates from requests."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

import pytest
import trio

from trioserve.errors import InvalidParameter
from trioserve.render import ChatOptions, Renderer, open_template_processes
from trioserve.render.text.probing import find_roles
from trioserve.render.text.tool_history import MAX_ARGUMENTS
from trioserve.render.workers import processes as template_processes

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object"}},
}

STRINGS = "{% for m in messages %}[{{ m.role + ':' + m.content }}]{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}:"
    "{% for part in m.content %}({{ part.text }}){% endfor %}]{% endfor %}"
)
BOTH = (
    "{% for m in messages %}[{{ m.role }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}]"
    "{% endfor %}"
)
TOOLS = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "</tools>{% endif %}{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)
# Like Qwen's, except for the words around it.
CALLS = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)
# Like DeepSeek's: messages with calls have no content, and arguments are a text.
TEXT_CALLS = (
    "{% for m in messages %}{% if m.content is none %}"
    "{% for call in m.tool_calls %}<{{ call.function.name + ' ' "
    "+ call.function.arguments }}>{% endfor %}"
    "{% else %}[{{ m.role + ':' + m.content }}]{% endif %}{% endfor %}"
)
# Like gpt-oss's: one call in a message.
ONE_CALL = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}{% if m.tool_calls %}"
    "<{{ m.tool_calls[0].function.name }}>{% endif %}]{% endfor %}"
)
# Like Llama's: it raises for all but one order of roles.
STRICT_CALLS = (
    "{% if messages | length != 3 or not messages[1].tool_calls %}"
    "{{ raise_exception('roles') }}{% endif %}" + CALLS
)
# Like Gemma's, but it leaves results out without an exception.
NO_RESULTS = (
    "{% for m in messages if m.role in ('user', 'assistant') %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
# Calls are only shown to a model that has tools.
CALLS_OF_TOOLS = (
    "{% if tools %}{{ tools | tojson }}"
    + CALLS
    + "{% else %}"
    + STRINGS
    + "{% endif %}"
)
ENDLESS = (
    "{% for a in range(100000) %}{% for b in range(100000) %}"
    "{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}"
)

Load = Callable[..., Renderer]


async def render(renderer: Renderer, *messages: Any, **options: Any) -> str:
    prompt = await renderer.render_chat(messages, ChatOptions(**options))
    assert prompt.text is not None
    return prompt.text


async def refuse(
    renderer: Renderer, param: str, reason: str, *messages: Any, **options: Any
) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        await render(renderer, *messages, **options)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("template", "one", "two"),
    [
        (STRINGS, "[user:Hi]", "[user:a\nb]"),
        (PARTS, "[user:(Hi)]", "[user:(a)(b)]"),
        (BOTH, "[user:Hi]", "[user:a\nb]"),
    ],
)
async def test_contents_come_in_the_form_that_the_template_reads(
    load_template: Load, template: str, one: str, two: str
) -> None:
    renderer = load_template(template)
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert await render(renderer, USER) == one
    assert await render(renderer, {"role": "user", "content": content}) == two


async def test_a_template_that_wants_a_system_message_takes_strings(
    load_template: Load,
) -> None:
    strict = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('who am I?') }}"
        "{% endif %}" + STRINGS
    )
    system = {"role": "system", "content": "x"}
    assert await render(load_template(strict), system, USER) == "[system:x][user:Hi]"


@pytest.mark.parametrize(
    ("variable", "effort", "shown"),
    [
        ("reasoning_effort", "high", "high"),
        ("reasoning_effort", None, ""),
        ("enable_thinking", "none", "False"),
        ("enable_thinking", "medium", ""),
        ("enable_thinking", "high", ""),
        ("thinking", "none", "False"),
        ("other", "none", ""),
        ("other", "max", ""),
    ],
)
async def test_the_effort_of_reasoning_goes_to_templates_that_read_it(
    load_template: Load, variable: str, effort: Any, shown: str
) -> None:
    renderer = load_template(STRINGS + "{{ %s }}" % variable)
    text = await render(renderer, USER, reasoning_effort=effort)
    assert text == f"[user:Hi]{shown}"


async def test_tools_are_shown_to_the_model(load_template: Load) -> None:
    text = await render(load_template(TOOLS), USER, tools=[TOOL])
    assert text == f"<tools>{json.dumps(TOOL)}</tools>Hi"
    assert await render(load_template(TOOLS), USER) == "Hi"


async def test_a_template_that_would_hide_tools_is_not_used(
    load_template: Load,
) -> None:
    renderer = load_template(STRINGS, tool_call_parser="none")
    await refuse(renderer, "tools", "no place for tools", USER, tools=[TOOL])


async def test_the_arguments_of_earlier_calls_are_objects(load_template: Load) -> None:
    call = {"id": "1", "function": {"name": "look_up", "arguments": '{"word": "a"}'}}
    empty = {"id": "2", "function": {"name": "look_up", "arguments": ""}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, empty]}
    assert await render(load_template(TOOLS), message) == '{"word": "a"}{}'


CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"word":"ä"}'},
}
CUT = '{"word": "\u00e4'
RESULT = {"role": "tool", "content": "42", "tool_call_id": "1"}


def call(content: object = None, *calls: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": calls or (CALL,)}


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (CALLS, None, '[assistant:<look_up {"word": "ä"}>]'),
        (CALLS, "", '[assistant:<look_up {"word": "ä"}>]'),
        (CALLS, "so", '[assistant:so<look_up {"word": "ä"}>]'),
        (STRICT_CALLS, None, '[assistant:<look_up {"word": "ä"}>]'),
        (TEXT_CALLS, None, '<look_up {"word":"ä"}>'),
        (TEXT_CALLS, "", '<look_up {"word":"ä"}>'),
        (ONE_CALL, None, "[assistant:<look_up>]"),
    ],
)
async def test_earlier_calls_come_in_the_form_that_the_template_reads(
    load_template: Load, template: str, content: object, expected: str
) -> None:
    text = await render(load_template(template), USER, call(content), RESULT)
    assert text == f"[user:Hi]{expected}[tool:42]"


@pytest.mark.parametrize(
    ("template", "message", "reason"),
    [
        (STRINGS, call(), "has no place for calls"),
        (STRINGS, call("so"), "has no place for calls"),
        (TEXT_CALLS, call("so"), "no place for calls in a message with content"),
        (ONE_CALL, call(None, CALL, CALL), "a place for only one call"),
        (CALLS_OF_TOOLS, call(), "has no place for calls"),
    ],
)
async def test_calls_that_a_template_would_drop_are_refused(
    load_template: Load, template: str, message: object, reason: str
) -> None:
    renderer = load_template(template, tool_call_parser="none")
    await refuse(renderer, "messages[1].tool_calls", reason, USER, message, RESULT)


async def test_calls_are_taken_with_the_tools_without_which_they_are_dropped(
    load_template: Load,
) -> None:
    text = await render(
        load_template(CALLS_OF_TOOLS), USER, call(), RESULT, tools=[TOOL]
    )
    assert text.endswith('[user:Hi][assistant:<look_up {"word": "ä"}>][tool:42]')


# Like gpt-oss's.
STRICT_REASONING = (
    "{% for t in tools or [] %}<{{ t.function.name + t.function.description }}>"
    "{% endfor %}{% for m in messages %}[{{ m.role }}:"
    "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}"
    "{% endif %}{{ m.thinking }}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.arguments | tojson }}>"
    "{% endfor %}]{% endfor %}"
)


@pytest.mark.parametrize(
    ("content", "reasoning", "shown"),
    [
        ("so", "hm", 'hm\nso|<{"word": "ä"}>'),
        ("so", None, '|so<{"word": "ä"}>'),
        (None, "hm", 'hm|<{"word": "ä"}>'),
    ],
)
async def test_a_text_joins_the_reasoning_if_the_template_refuses_both(
    load_template: Load, content: str | None, reasoning: str | None, shown: str
) -> None:
    message = {**call(content), "reasoning": reasoning}
    text = await render(load_template(STRICT_REASONING), USER, message, RESULT)
    assert text == f"[user:|Hi][assistant:{shown}][tool:|42]"
    # Others show both.
    lenient = STRICT_REASONING.replace("raise_exception('both')", "''")
    text = await render(
        load_template(lenient), USER, {**call("so"), "reasoning": "hm"}, RESULT
    )
    assert "[assistant:hm|so<" in text


async def test_a_template_that_wants_descriptions_gets_them(
    load_template: Load,
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = await render(load_template(STRICT_REASONING), USER, tools=tools)
    assert text == "<f>[user:|Hi]"
    # Others get the tools as they are.
    assert await render(load_template(TOOLS), USER, tools=tools) == (
        f"<tools>{json.dumps(tools[0])}</tools>Hi"
    )


# Like Qwen3-Coder's and Gemma 4's, which list the parameters.
ITEM_CALLS = CALLS.replace(
    "{{ call.function.arguments | tojson }}",
    "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }}{% endfor %}",
)
# Like Qwen3's.
EITHER_CALLS = CALLS.replace(
    "{{ call.function.arguments | tojson }}",
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}",
)
# Shows nothing of a text.
MAPPING_CALLS = ITEM_CALLS.replace(
    "{% for key,", "{% if call.function.arguments is mapping %}{% for key,"
).replace("{% endfor %}>", "{% endfor %}{% endif %}>")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (CALLS, json.dumps(CUT, ensure_ascii=False)),
        (STRICT_CALLS, json.dumps(CUT, ensure_ascii=False)),
        (EITHER_CALLS, CUT),
        (TEXT_CALLS, CUT),
        (ITEM_CALLS, f"arguments={CUT}"),
        (MAPPING_CALLS, f"arguments={CUT}"),
    ],
)
async def test_arguments_that_were_cut_off_are_shown_as_text(
    load_template: Load, template: str, shown: str
) -> None:
    cut = {"id": "1", "function": {"name": "look_up", "arguments": CUT}}
    text = await render(load_template(template), USER, call(None, cut), RESULT)
    assert f"<look_up {shown}>" in text


async def test_arguments_are_not_nested_too_deeply(load_template: Load) -> None:
    # Python's decoder gives up at the second one.
    for depth in (200, 100_000):
        deep = {"function": {"name": "f", "arguments": "[" * depth + "]" * depth}}
        param = "messages[0].tool_calls[0].function.arguments"
        await refuse(load_template(CALLS), param, "at most 64 lists", call(None, deep))


async def test_long_arguments_are_refused_before_they_are_decoded(
    load_template: Load,
) -> None:
    text = "{}" + " " * (MAX_ARGUMENTS - 2)
    longest = {"function": {"name": "f", "arguments": text}}
    await render(load_template(CALLS), call(None, longest))
    # This is not JSON, so the length must be checked before it is decoded.
    longer = {"function": {"name": "f", "arguments": text + "["}}
    param = "messages[0].tool_calls[0].function.arguments"
    reason = "at most 262144 characters"
    await refuse(load_template(CALLS), param, reason, call(None, longer))


async def test_a_result_comes_with_the_name_of_the_called_function(
    load_template: Load,
) -> None:
    named = CALLS.replace("[{{ m.role }}:", "[{{ m.role }} {{ m.name }}:")
    text = await render(load_template(named), USER, call(), RESULT)
    assert text.endswith("[tool look_up:42]")


async def test_results_that_a_template_would_drop_are_refused(
    load_template: Load,
) -> None:
    renderer = load_template(NO_RESULTS, tool_call_parser="none")
    reason = "no place for results of tools"
    await refuse(renderer, "messages[1].role", reason, USER, RESULT)


# Like Llama 3's and GLM's; it names a role whose messages it drops.
ROLES = (
    "{% for m in messages %}{% if m.role == 'developer' or m['role'] == 'system' %}"
    "<{{ m.role }}:{{ m.content }}>{% elif m.role in ['ipython', \"observation\"] %}"
    "({{ m.role }}:{{ m.content }}){% elif m.role == 'function' %}{% else %}"
    "[{{ m.role }}:{{ m.content }}]{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        ("ipython", "(ipython:x)"),
        ("observation", "(observation:x)"),
        ("developer", "<developer:x>"),
        ("system", "<system:x>"),
        ("tool", "[tool:x]"),
    ],
)
async def test_a_template_takes_the_roles_that_it_names(
    load_template: Load, role: str, shown: str
) -> None:
    message = {"role": role, "content": "x"}
    assert await render(load_template(ROLES), USER, message) == f"[user:Hi]{shown}"


# Messages of other roles are hidden, or shown as nobody's.
STRICT = ROLES.replace("{% else %}", "{% elif m.role in ROLES %}").replace(
    "ROLES", "['user', 'assistant', 'tool']"
)
NAMELESS = ROLES.replace(
    "[{{ m.role }}:", "[{{ m.role if m.role in ['user', 'tool'] else 'none' }}:"
)


async def test_other_roles_are_refused(load_template: Load) -> None:
    for template, role in (
        *((STRICT, each) for each in ("function", "robot", "role", "secret" * 100, "")),
        *((NAMELESS, each) for each in ("function", "robot", "content", "")),
        *((ROLES, each) for each in ("function", "")),
    ):
        message = {"role": role, "content": "x"}
        with pytest.raises(InvalidParameter, match="must be one of system, dev") as e:
            await render(load_template(template), USER, message)
        assert e.value.param == "messages[1].role", (template, role)
        assert "assistant, tool, ipython, obs" in str(e.value), (template, role)
        assert len(str(e.value)) < 200, (template, role)


@pytest.mark.parametrize("template", [STRINGS, PARTS, ROLES])
async def test_a_template_that_takes_any_role_gets_any_role(
    load_template: Load, template: str
) -> None:
    text = await render(
        load_template(template), USER, {"role": "my-role", "content": "x"}
    )
    assert "my-role:" in text and "x" in text
    # A newer name of the system's.
    text = await render(
        load_template(STRINGS), {"role": "developer", "content": "x"}, USER
    )
    assert text == "[system:x][user:Hi]"


def test_statements_without_an_end_are_read_once() -> None:
    # If each were searched to the end of the source, this would take minutes.
    begun = "{% if role == 'a' " * 40_000
    assert find_roles(begun) == []
    assert find_roles(begun + "%}{% if m.role == 'b' %}") == ["a", "b"]


async def test_a_template_of_a_request_must_be_trusted(load_template: Load) -> None:
    own = load_template(STRINGS)
    await refuse(own, "chat_template", "--trust-req", USER, chat_template="{{ 1 }}")
    renderer = load_template(STRINGS, trust_request_chat_template=True)
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert await render(renderer, USER, chat_template=template) == "<Hi>"
    assert await render(renderer, USER) == "[user:Hi]"
    # It may name roles and show calls.
    message = {"role": "ipython", "content": "x"}
    assert await render(renderer, message, chat_template=ROLES) == "(ipython:x)"
    text = await render(renderer, USER, call(), chat_template=CALLS)
    assert text == '[user:Hi][assistant:<look_up {"word": "ä"}>]'


async def test_what_a_template_refuses_is_the_requests_fault(
    load_template: Load,
) -> None:
    renderer = load_template(STRINGS, trust_request_chat_template=True)
    for template, reason in (
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate$"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages[0].missing.deeper }}", "missing"),
        ("{{ range(10000000) | list }}", "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply$"),
    ):
        reason = f"refuses them: .*{reason}"
        await refuse(renderer, "messages", reason, USER, chat_template=template)


@pytest.mark.slow
async def test_a_process_renders_in_bounded_time_and_memory(
    load_template: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"trust_request_chat_template": True, "template_timeout": 0.3}
    renderer = load_template(TOOLS, **options)
    threads = await render(renderer, USER, tools=[TOOL])
    # One call of a C function that takes minutes and little memory.
    stubborn = "{{ (7 ** 9000000) | string | length }}"
    with trio.fail_after(60):
        async with open_template_processes(1) as processes:
            assert processes is not None
            renderer.chats.processes = processes
            assert await render(renderer, USER, tools=[TOOL]) == threads
            for template, reason in (
                ("{{ raise_exception(messages[0].content) }}", "refuses them: Hi"),
                (ENDLESS, "longer than 0.3 s"),
                ("{{ 'a' * 3000000000 }}", "too much memory"),
            ):
                with pytest.raises(InvalidParameter, match=reason):
                    await render(renderer, USER, chat_template=template)
            assert processes.num_killed == 0
            monkeypatch.setattr(template_processes, "_KILL_SECONDS", 0.1)
            with pytest.raises(InvalidParameter, match="longer than 0.3 s"):
                await render(renderer, USER, chat_template=stubborn)
            assert processes.num_killed == 1
            # No thread and no taken place is left behind.
            assert processes.limiter.borrowed_tokens == 0
            assert renderer.workers.statistics().abandoned == 0
