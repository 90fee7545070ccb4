"""Chat templates render as in transformers, and are refused for the same messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import enum
import inspect
from typing import Any

import jinja2
import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from trioserve.errors import InvalidParameter
from trioserve.render.text.rendering import TemplateCall
from trioserve.render.text.template import RESERVED_NAMES

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": " Hello there. "}
TOOL = {"type": "function", "function": {"name": "é<f>", "parameters": {"b": 1}}}

# Their tests may use every variable and filter that templates on the hub use.
TEMPLATES = {
    "chatml": (
        "{%- for m in messages %}\n    {{- '<|' + m['role'] + '|>\n' + m.content }}\n"
        "  {% endfor %}\n{% if add_generation_prompt %}<|assistant|>\n{% endif %}\n"
    ),
    "json": (
        "{{ tools | tojson }}{{ tools | tojson(indent=2) }}"
        "{{ messages | tojson(ensure_ascii=true, sort_keys=true) }}"
        "{{ messages[0] | tojson(separators=(',', ':')) }}"
    ),
    "namespace": (
        "{% set ns = namespace(last='', n=0) %}{% for m in messages %}"
        "{% set ns.last = m.role %}{% set ns.n = ns.n + 1 %}"
        "{% if ns.n > 1 %}{% break %}{% endif %}{% continue %}{% endfor %}"
        "{{ ns.last }}{{ ns.n }}{{ dict(a=1) }}{{ dict.fromkeys('ab') }}"
    ),
    "generation": (
        "{% set a = 1 %}{% for m in messages %}{% generation %}{% set a = 2 %}"
        "{{ m.content }}{% endgeneration %}{% endfor %}{{ a }}"
    ),
    "reasoning": (
        "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|"
        "{{ m.reasoning }}{% endfor %}"
    ),
    "variables": "{{ bos_token }}{{ enabled }}{{ documents }}{{ tools }}{{ nothing }}",
    "parts": "{% for m in messages %}{{ m.content | string | trim }};{% endfor %}",
    "macros": (
        "{% macro f(x) %}{{ x | upper }}{% endmacro %}{{ f(messages[-1].role) }}"
        "{{ messages | map(attribute='role') | join(',') }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    ),
    "format": "{{ '{0.__class__}'.format(messages) }}",
    "time": "{{ strftime_now('%Y') }}",
    "trims": "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
    "no content": "{{ messages | length }}",
}

REFUSED = {
    "exception": "{{ raise_exception('no ' + messages[0].role) }}",
    "syntax": "{% if %}",
    "filter": "{{ messages | nosuch }}",
    "mutation": "{{ messages.append(1) }}",
    "escape": "{{ messages.__class__.__mro__ }}",
    "dict": "{{ dict.__init__() }}",
    "hidden name": "{% set ns = namespace(_a=1) %}",
    "hidden attribute": "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "attribute": "{{ messages[0].nosuch.more }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


class Color(str, enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    inner: object


class Model:
    def model_dump(self) -> dict[str, int]:
        return {"a": 1}


# Values that programs may put into messages.
RICH = [
    *(Color.RED, np.int64(3), np.bool_(False), np.float32(0.5), np.zeros(2)),
    *(Point(1, {"y": object()}), Model(), (1, "a"), {1: None}, Point, 1.5, True),
]

CHATS: dict[str, list[Any]] = {
    "one": [USER],
    "two": [USER, ANSWER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " a "}, {}]}],
    "thinking": [
        {**ANSWER, "reasoning": "so"},
        {**ANSWER, "thinking": "", "reasoning_content": None},
        {**ANSWER, "thinking": "t", "reasoning_content": "r"},
    ],
    "rich": [{"role": "user", "content": RICH}],
    "none": [{"role": "user", "content": None}],
}

Run = Callable[[], str]


def run_both(
    source: str,
    messages: list[Any],
    *,
    tools: list[dict[str, Any]] | None = None,
    prompt: bool = False,
    continues: bool = False,
    variables: dict[str, Any] | None = None,
) -> tuple[Run, Run]:
    named = {"bos_token": "<s>", "enabled": False} if variables is None else variables

    def ours() -> str:
        call = TemplateCall(
            source=source,
            messages=messages,
            tools=tools,  # type: ignore[arg-type]
            add_generation_prompt=prompt,
            continue_final_message=continues,
            variables=named,
        )
        try:
            return call.render()
        except InvalidParameter as error:
            assert error.__context__ is not None
            raise error.__context__ from None

    def theirs() -> str:
        render: Any = render_jinja_template
        texts, _ = render(
            conversations=[messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=prompt,
            continue_final_message=continues,
            **named,
        )
        return str(texts[0])

    return ours, theirs


def find_error(run: Run) -> type[Exception] | None:
    try:
        run()
    except Exception as error:
        return type(error)
    return None


def check_same(ours: Run, theirs: Run) -> None:
    error = find_error(theirs)
    assert find_error(ours) == error
    if error is None:
        assert ours() == theirs()


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_renders_as_in_transformers(template: str) -> None:
    for chat in CHATS:
        source, messages = TEMPLATES[template], CHATS[chat]
        for tools in (None, [TOOL]):
            for prompt in (False, True):
                check_same(*run_both(source, messages, tools=tools, prompt=prompt))
        check_same(*run_both(source, messages, continues=True))


def test_a_template_is_refused_as_in_transformers() -> None:
    for template in REFUSED:
        ours, theirs = run_both(REFUSED[template], [USER])
        assert find_error(theirs) is not None, template
        check_same(ours, theirs)


def test_most_templates_render() -> None:
    # So that the comparison is not one of errors alone.
    for source in TEMPLATES.values():
        run_both(source, [USER, ANSWER], tools=[TOOL])[0]()


@pytest.mark.parametrize(
    "messages", [[], [USER, "Hi"], [USER, {"role": "assistant", "content": 7}], [{}]]
)
def test_wrong_messages_are_refused_as_in_transformers(messages: list[Any]) -> None:
    for template in ("chatml", "parts"):
        for continues in (False, True):
            source = TEMPLATES[template]
            check_same(*run_both(source, messages, continues=continues))


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    run_both(TEMPLATES["parts"], messages, continues=True)[0]()
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_a_reason_is_the_templates_own() -> None:
    ours, _ = run_both(REFUSED["exception"], [USER])
    with pytest.raises(jinja2.TemplateError, match="^no user$"):
        ours()


def test_parameters_of_transformers_are_reserved() -> None:
    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template)
    assert RESERVED_NAMES == {*parameters.parameters, "messages", "conversations"}
