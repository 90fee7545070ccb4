"""The settings of an answer, in a browser."""

from __future__ import annotations

from collections.abc import Callable
import json
from typing import Any

from trioserve.testing.server import FakeServer
from trioserve.types.sampling import EXCLUSIVE, SAMPLING_BOUNDS

from .test_chat import ANSWERED, find_bodies, send

OpenPage = Callable[..., Any]

# What is written into each field, and what the request has.
WRITTEN: dict[str, tuple[str, Any]] = {
    "temperature": ("0,5", 0.5),
    "top_p": ("0.9", 0.9),
    "top_k": ("40", 40),
    "min_p": ("0.05", 0.05),
    "repetition_penalty": ("1.1", 1.1),
    "presence_penalty": ("-0.5", -0.5),
    "frequency_penalty": ("0.5", 0.5),
    "max_tokens": ("3", 3),
    "seed": ("7", 7),
    "stop": ("END\n\\n\\n\n\\\\n", ["END", "\n\n", "\\n"]),
}


def find_id(name: str) -> str:
    return "stop_texts" if name == "stop" else name


def test_all_settings_are_sent_kept_and_reset(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    bodies = find_bodies(page)
    texts = {find_id(name): text for name, (text, _) in WRITTEN.items()}
    for _ in range(2):
        send(page, "Hello", **texts, system="Be.")
        page.wait_for_selector(ANSWERED)
        expected = {name: value for name, (_, value) in WRITTEN.items()}
        assert {name: bodies[-1].get(name) for name in expected} == expected
        assert bodies[-1]["messages"][0] == {"role": "system", "content": "Be."}
        # They are there after F5, and the summary says that there are some.
        page.reload()
        page.wait_for_selector("summary:has-text('Settings (11 set)')")
        texts = {}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    page.locator("#settings").evaluate("node => { node.open = true; }")
    page.click("#reset")
    send(page, "Hello", schema=json.dumps(schema), max_tokens=3)
    page.wait_for_selector(ANSWERED)
    assert bodies[-1]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }
    assert not {*WRITTEN} - {"max_tokens"} & {*bodies[-1]}
    # The system prompt is not the model's.
    assert page.input_value("#system") == "Be."


def test_ranges_are_those_of_the_server(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    refuses = """([name, value]) => {
        try { SETTINGS[name].read(String(value)); return false; }
        catch (error) { return error instanceof WrongSetting; }
    }"""
    for name in WRITTEN:
        if name in ("stop", "seed"):
            continue
        low, high = SAMPLING_BOUNDS[name]
        low = max(low, 1) if name == "max_tokens" else low
        step = 1 if isinstance(low, int) else 0.001
        seen = [
            page.evaluate(refuses, [name, value])
            for value in (low - step, low, high, high + step)
        ]
        assert seen == [True, name in EXCLUSIVE, False, True], name


def test_what_is_wrong_is_said_at_its_field(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    bodies = find_bodies(page)
    wrong = {
        "temperature": ("warm", "This is not a number."),
        "top_p": ("0", "This must be above 0 and at most 1."),
        "top_k": ("1.5", "This is not a whole number, in digits alone."),
        "max_tokens": ("1,000", "This is not a whole number, in digits alone."),
        "seed": ("0x10", "This is not a whole number, in digits alone."),
        "min_p": ("0x1", "This is not a number."),
        "schema": ("{", "This is not JSON"),
    }
    for name, (text, message) in wrong.items():
        send(page, "Hello", **{name: text})
        assert message in page.inner_text(f"#{name}-wrong"), name
        assert page.evaluate("document.activeElement.id") == name
        assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
        assert "Your text stays here." in page.inner_text("#hint")
        page.fill(f"#{name}", "")
        assert page.inner_text(f"#{name}-wrong") == ""
    assert page.input_value("#prompt") == "Hello" and bodies == []
    # The server refuses what the page cannot know, and names the field.
    for name, text in [
        ("stop_texts", "a\n" * 100),
        ("stop_texts", "a" * 2000),
        ("schema", '{"type": "no"}'),
    ]:
        send(page, "Hello", **{name: text})
        page.wait_for_selector(f"#{name}-wrong:not(:empty)")
        assert page.inner_text(f"#{name}-wrong") in page.inner_text("#log"), name
        page.fill(f"#{name}", "")
    assert len(bodies) == 3
    # An answer that is asked for again does without no setting, either.
    page.fill("#min_p", "2")
    page.click(".message.user:last-child >> text=Ask again")
    page.wait_for_selector("text=The setting “Min p” is wrong.")
    assert page.evaluate("document.activeElement.id") == "min_p"
    assert len(bodies) == 3
