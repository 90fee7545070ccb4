"""The page on screens of all kinds: a wide one with its panel, and a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trioserve.testing.server import FakeServer

from .conftest import open_panel, wait_for

OpenPage = Callable[..., Any]

PHONE = {"width": 375, "height": 667}


def test_the_live_view_is_folded_until_it_is_asked_for(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    assert page.is_hidden("#live")
    assert page.get_attribute("#show-panel", "aria-expanded") == "false"
    open_panel(page)
    wait_for(page, "meter.metrics")
    # It explains its words.
    page.click("text=What the words here mean")
    for word in ("Token", "TTFT", "KV block", "prefix hit", "Event loop"):
        assert page.locator("#words dt", has_text=word).first.is_visible(), word
    # The browser remembers it.
    page.reload()
    page.wait_for_selector("#live", state="visible")
    page.click("#show-panel")
    page.reload()
    wait_for(page, "server.model")
    assert page.is_hidden("#live") and page.is_visible("#chat")
    # A view that nobody sees asks nothing.
    asked.clear()
    page.evaluate("poll()")
    assert not [each for each in asked if "metrics" in each or "requests" in each]


def test_a_finger_has_its_own_ways(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, viewport=PHONE, has_touch=True, is_mobile=True)
    assert "The button sends" in page.inner_text("#welcome")
    assert "Shift" not in page.inner_text("#welcome")
    page.tap("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"
    look = "getComputedStyle(byId('send')).backgroundColor"
    before = page.evaluate(look)
    page.tap("#send")
    page.wait_for_selector(".message.user")
    assert page.inner_text(".message.user .text") == "one\ntwo"
    # The keyboard goes away.
    assert page.evaluate("document.activeElement.id") == "stop"
    page.tap("#stop")
    page.wait_for_selector("#send", state="visible")
    # A tap leaves no look of a pointer behind.
    assert page.evaluate(look) == before
    # Browsers enlarge a page for a field with smaller letters.
    page.tap("#settings summary")
    sizes = page.evaluate(
        """() => [...document.querySelectorAll("#composer :is(input, textarea)")]
        .filter((each) => each.checkVisibility())
        .map((each) => parseFloat(getComputedStyle(each).fontSize))"""
    )
    assert len(sizes) > 9 and min(sizes) >= 16
    # Nothing draws a ring around a view.
    page.tap("#settings summary")
    page.tap("#to-live")
    page.wait_for_selector("#live", state="visible")
    page.evaluate("byId('live').focus()")
    ring = "getComputedStyle(byId('live')).outlineStyle"
    assert page.evaluate(ring) == "none"


def test_the_composer_is_seen_on_low_screens(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, viewport=PHONE, has_touch=True, is_mobile=True)
    # A keyboard that leaves the height of the page as it was.
    page.evaluate("""() => {
            Object.defineProperty(visualViewport, "height", {value: 300, configurable: true});
            visualViewport.dispatchEvent(new Event("resize"));
        }""")
    box = page.locator("#send").bounding_box()
    assert box["y"] + box["height"] <= 300
    page.evaluate("() => { delete visualViewport.height; fitScreen(); }")
    page.evaluate(
        """for (let i = 0; i < 30; i++) byId("messages").append(make("p", {}, "A line."))"""
    )
    sizes = {
        "upright": PHONE,
        "on its side": {"width": 667, "height": 375},
        "with a keyboard": {"width": 375, "height": 300},
        "on its side with a keyboard": {"width": 667, "height": 180},
    }
    for name, size in sizes.items():
        page.set_viewport_size(size)
        page.focus("#prompt")
        box = page.locator("#send").bounding_box()
        assert box["y"] + box["height"] <= size["height"], name
        assert page.evaluate("document.documentElement.scrollHeight") <= size["height"]
        # A scroll bar moves neither of the two columns aside.
        places = [page.locator(f"{each} .column") for each in ("#log", "#composer")]
        assert len({each.first.bounding_box()["x"] for each in places}) == 1
        # Some lines of the conversation are seen, too.
        assert page.locator("#log").bounding_box()["height"] > 60, name
