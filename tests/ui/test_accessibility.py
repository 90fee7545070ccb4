"""The page for people who use a keyboard, a screen reader, a small or a dark screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trioserve.testing.server import FakeServer

from .conftest import SECONDS, open_panel, wait_for, watch_pages
from .test_chat import ANSWERED, send

OpenPage = Callable[..., Any]

NARROW = {"width": 320, "height": 640}
# Playwright's own size.
WIDE = {"width": 1280, "height": 720}

# WCAG 2.2, 1.4.3: the contrast of each text with the ground behind it, the lowest one.
FIND_LOW_CONTRAST = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const bright = ([r, g, b]) => [r, g, b].map((each) => each / 255)
        .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (node) => {
        for (let each = node; each; each = each.parentElement) {
            const [r, g, b, a = 1] = parse(getComputedStyle(each).backgroundColor);
            if (a === 1) return [r, g, b];
        }
        throw new Error("no ground");
    };
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
        if (["SCRIPT", "STYLE", "OPTION"].includes(node.tagName)) continue;
        const [one, other] = [parse(getComputedStyle(node).color), ground(node)].map(bright);
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) low.push([walker.currentNode.data, contrast]);
    }
    return low;
}"""


def fill_page(page: Any) -> None:
    """Let the page show everything that it can."""
    send(page, "Hello", max_tokens=3)
    page.wait_for_selector(ANSWERED)
    page.evaluate("""() => {
            const parent = shown.listPath().at(-1).message.id;
            const refused = shown.add({role: "user", parent, text: "a", failure: "A refusal."});
            const view = new Answer(shown, shown.add({role: "assistant", parent: refused.id, model: "m"}));
            view.begin();
            view.take({choices: [{delta: {reasoning: "Hm."}}]});
            view.take({choices: [{delta: {content: "a `b` [c](https://c.example)\\n\\n```python\\n"
                + "# one\\n@a\\ndef b(c: int): return 'd', 1, None, print(f'{c}')\\n"
                + "a_long_name_".repeat(20) + "\\n```\\n\\n| a | b |\\n|--|--|\\n| 1 | 2 |"}}]});
            view.finish("A refusal.", true);
            shown.add({role: "assistant", parent: refused.id, text: "a branch"});
            shown.chosen[refused.id] = view.message.id;
            shown.queue.push({text: "waits", images: []});
            showPath();
            showQueue();
            showHint("A hint.");
            showUndo("The message is deleted.", () => {});
            document.querySelector(".message.user [data-act=edit]").click();
            noteStorage("Nothing is kept.");
            document.querySelector(".reasoning").open = true;
            const task = {name: "trioserve.a.task", awaits: ["a.b:1", "trioserve.c.d:2"],
                tasks: [], num_tasks_left_out: 3};
            const card = {id: "request-" + "0".repeat(60), method: "POST", path: "/v1/x",
                key: "somebody", phase: "queue", age_seconds: 3, timeout_seconds: 60,
                prompt_tokens: 12, completion_tokens: 0};
            showRequests = () => {};
            const row = new Row(card);
            row.show(card);
            row.showDetails({...card, worker: "engine queue", kv_blocks: 3,
                task: {...task, tasks: [task, task]}});
            byId("no-requests").hidden = true;
            showBanner("The server does not answer.", true);
        }""")
    page.wait_for_selector(".token.keyword")


@pytest.fixture(scope="module")
def opened(server: FakeServer, browser: Any, usual: Any) -> Iterator[tuple[Any, Any]]:
    with watch_pages(browser, usual) as open_page:
        page = open_page(server.url)
        fill_page(page)
        yield page, open_page(f"{server.url}/docs", waits=False)


@pytest.fixture
def pages(opened: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The page with everything that it can show, and the description of the API."""
    opened[0].evaluate("() => list.open || openList()")
    yield opened
    for page in opened:
        page.set_viewport_size(WIDE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_text_can_be_read(pages: tuple[Any, Any], scheme: str) -> None:
    for page in pages:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(FIND_LOW_CONTRAST) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    page, _ = pages
    page.evaluate("noteList('A note.', () => {})")
    assert page.evaluate(FIND_LOW_CONTRAST) == []
    page.click("#forget-all")
    assert page.evaluate(FIND_LOW_CONTRAST) == []
    page.keyboard.press("Escape")
    page.evaluate("noteKeyNeeded(true)")
    assert page.evaluate(FIND_LOW_CONTRAST) == []
    page.keyboard.press("Escape")


def test_nothing_is_wider_than_a_narrow_screen(pages: tuple[Any, Any]) -> None:
    page, description = pages
    for each in pages:
        each.set_viewport_size(NARROW)
    page.wait_for_selector("#list:modal")
    assert page.locator("#list").evaluate("node => node.scrollWidth <= 320")
    page.keyboard.press("Escape")
    # A table is scrolled, and its words stay whole.
    height = page.evaluate("""() => {
            const root = make("div", {className: "text"});
            byId("messages").append(root);
            new Markdown(root).show(`${"|words".repeat(9)}|\\n${"|-".repeat(9)}|`);
            const {height} = root.querySelector("th").getBoundingClientRect();
            root.remove();
            return height;
        }""")
    assert 0 < height < 40
    for view in ("chat", "live"):
        page.click(f"#to-{view}")
        page.wait_for_selector(f"#to-{view}[aria-current=page]")
        page.wait_for_selector(f"#{view}", state="visible")
        for selector in (":root", f"#{view}", "#log"):
            assert page.locator(selector).evaluate(
                "node => node.scrollWidth <= node.clientWidth"
            )
    assert description.evaluate("document.documentElement.scrollWidth") <= 320


def test_everything_is_reached_by_the_keyboard(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, viewport={"width": 700, "height": 800})
    assert focused(page) == "prompt"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    for _ in range(3):
        page.keyboard.press("Tab" if focused(page) != "max_tokens" else "Home")
    seen = [focused(page)]
    while seen[-1] != "send":
        if seen[-1] == "max_tokens":
            page.keyboard.type("3")
        page.keyboard.press("Tab")
        seen.append(focused(page))
    assert seen[-8:] == [
        *("frequency_penalty", "max_tokens", "seed", "stop_texts", "schema"),
        *("reset", "prompt", "send"),
    ]
    # The place of the focus can be seen.
    assert (
        page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        == "solid"
    )
    page.keyboard.press("Enter")
    page.wait_for_selector(ANSWERED)
    assert page.inner_text(".message.user .text") == "one\ntwo"
    # The focus stays at the button, which was Stop in the meantime.
    assert focused(page) == "send"
    for name in ("to-chat", "to-live", "to-docs", "log"):
        page.focus("#to-chat")
        while focused(page) != name:
            page.keyboard.press("Tab")
            assert focused(page) != "prompt"
    # The list and its conversations, from button to button.
    page.evaluate("() => saving")
    page.focus("#to-list")
    page.keyboard.press("Enter")
    assert focused(page) == "search"
    page.wait_for_selector("#conversations a")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.ariaCurrent") == "true"
    for key, expected in [("Tab", "more"), ("Space", "more"), ("Tab", "rename")]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.act") == expected
    page.keyboard.press("Escape")
    assert focused(page) == "to-list" and page.is_hidden("#list")
    # A way around all buttons of the messages, and the buttons of one.
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "to-prompt" and page.is_visible("#to-prompt")
    page.keyboard.press("Enter")
    assert focused(page) == "prompt"
    page.focus(".message.user [data-act=edit]")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.ariaLabel") == "Edit the question"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.act") == "edit"
    page.focus("#to-live")
    page.keyboard.press("Enter")
    page.wait_for_selector("#live", state="visible")


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.id")


def test_a_screen_reader_finds_landmarks_names_and_states(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    send(page, "Hello", max_tokens=3)
    page.wait_for_selector(ANSWERED)
    open_panel(page)
    wait_for(page, "meter.metrics")
    # The browser is there, so Playwright is.
    from playwright.sync_api import expect

    expect(page.locator("body")).to_match_aria_snapshot(
        """
        - banner:
          - button "Conversations"
          - heading "trioserve" [level=1]
          - paragraph: fake
          - navigation "Views":
            - button "Live view" [expanded]
            - link "API"
        - main:
          - region "Chat":
            - log "Conversation":
              - article:
                - heading "You" [level=3]
                - text: Hello
                - button "Edit"
                - button "Delete"
              - article:
                - heading "fake" [level=3]
                - paragraph
                - paragraph: /limit of tokens/
                - button "Regenerate"
            - group:
              - text: /Settings/
              - textbox "System prompt"
              - textbox "Temperature"
              - paragraph: /likeliest token/
              - textbox "Top p"
              - textbox "Max tokens"
              - textbox "Seed"
              - textbox "JSON schema"
            - button "New chat"
            - textbox "Message"
            - button "Send"
          - region "Live view":
            - heading "Live view" [level=2]
            - group: What the words here mean
            - figure /Tokens per second/:
              - img /Tokens per second in the last minute/
            - heading "Requests" [level=3]
        """,
        timeout=1000 * SECONDS,
    )
    # A screen reader waits until an answer is complete.
    assert page.get_attribute("#log", "aria-live") == "polite"
    assert page.get_attribute("#log", "aria-busy") == "false"
    assert page.inner_text("#spoken") == "The answer is complete."


def test_each_control_has_a_name_and_is_large_enough(pages: tuple[Any, Any]) -> None:
    page, _ = pages
    controls = page.locator(
        "button:visible, input:visible, textarea:visible, a:visible"
    )
    for i in range(controls.count()):
        control = controls.nth(i)
        name = control.evaluate(
            "node => node.ariaLabel || node.labels?.[0]?.textContent || node.textContent"
        )
        assert name.strip()
        # WCAG 2.2, 2.5.8; links in a text need no size.
        if control.evaluate("node => node.tagName !== 'A'"):
            assert control.bounding_box()["height"] >= 24


def test_nothing_moves_for_those_who_ask_for_that(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, reduced_motion="reduce")
    # The answer never comes.
    page.route("**/v1/chat/completions", lambda route: None)
    send(page, "Hello")
    page.wait_for_selector(".message.busy")
    assert page.evaluate("document.getAnimations().length") == 0
