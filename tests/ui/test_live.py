"""The live view of the page, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
import threading
from typing import Any

import httpx2 as httpx

from trioserve.testing.server import FakeServer, open_fake_server

from .conftest import SECONDS, open_panel, run_server, wait_for, wait_for_look

OpenPage = Callable[..., Any]

CHAT = {"messages": [{"role": "user", "content": "a"}], "stream": True}


@contextmanager
def open_chat(url: str, request_id: str) -> Iterator[Iterator[str]]:
    """Open a stream beside the page; yields the lines of its events."""
    headers = {"X-Request-Id": request_id, "X-Request-Timeout": "600"}
    with httpx.Client(timeout=SECONDS) as client:
        with client.stream(
            "POST", f"{url}/v1/chat/completions", json=CHAT, headers=headers
        ) as answer:
            yield answer.iter_lines()


def test_a_running_request_is_shown_as_a_tree_and_cancelled(
    tokenizer_folder: Path, open_page: OpenPage
) -> None:
    # Its stream lasts for minutes.
    slow = open_fake_server(tokenizer_folder, step_seconds=1)
    with run_server(slow) as server, open_chat(server.url, "other") as lines:
        assert next(lines)
        page = open_page(server.url)
        open_panel(page)
        row = page.locator(".request")
        row.locator(
            ".tree .task", has_text="ScopedConnection.handle_request"
        ).wait_for()
        text = row.inner_text()
        assert "decode POST /v1/chat/completions" in text
        assert row.locator("dd").nth(0).inner_text() == "device"
        assert row.locator("dd").nth(1).inner_text().startswith("in ")
        assert int(row.locator("dd").nth(3).inner_text()) >= 1
        assert row.locator("dd").nth(4).inner_text() == "other"
        waits = row.locator(".tree .await", has_text="TokenStream.__anext__")
        assert waits.count() >= 1
        # A reader who opens a stack finds it open after the next look.
        stack = row.locator(".tree ol").first
        row.locator(".tree summary").first.click()
        stack.wait_for()
        wait_for_look(page)
        assert stack.is_visible()
        page.get_by_role("button", name="Cancel other").click()
        row.wait_for(state="detached")
        rest = "\n".join(lines)
        assert '"error"' in rest and "cancelled" in rest.lower()
        wait_for(page, "byId('spoken').textContent === 'Request other is cancelled.'")
        # The button is gone, and the focus is not lost with it.
        wait_for(page, "document.activeElement.id === 'requests-title'")


def test_the_charts_follow_the_metrics(server: FakeServer, open_page: OpenPage) -> None:
    with open_chat(server.url, "busy") as lines:
        next(lines)
        page = open_page(server.url)
        open_panel(page)
        wait_for(page, "charts[0].lines[0].some(each => each > 0)")
        wait_for(page, "charts[1].lines[0].some(each => each > 0)")
    charts = page.locator(".chart")
    assert charts.count() == 4
    for i in range(4):
        svg = charts.nth(i).locator("svg")
        assert svg.get_attribute("points") is None
        assert charts.nth(i).locator(".first").get_attribute("points")
        assert svg.get_attribute("aria-label")


def test_looks_are_not_in_the_list(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url)
    shown = page.evaluate("""() => {
            const card = {method: "GET", age_seconds: 1, timeout_seconds: null, phase: "write",
                prompt_tokens: 0, completion_tokens: 0, key: null};
            showRequests([
                {...card, id: "a", path: "/v1/requests"},
                {...card, id: "b", path: "/v1/requests/x"},
                {...card, id: "c", path: "/v1/models"},
            ]);
            return [...rows.values()].map((each) => each.card.id);
        }""")
    assert shown == ["c"]


def test_it_asks_only_while_somebody_sees_it(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, viewport={"width": 500, "height": 700})
    page.clock.install()
    page.reload()
    wait_for(page, "server.model")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    # The narrow page shows the chat.
    page.clock.run_for(10_000)
    assert asked == []
    page.click("#to-live")
    wait_for(page, "meter.metrics")
    assert asked
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'})"
    )
    wait_until_idle(page)
    page.clock.run_for(1_000)
    wait_until_idle(page)
    asked.clear()
    page.clock.run_for(10_000)
    assert asked == []


def wait_until_idle(page: Any) -> None:
    wait_for(page, "!isPolling")


def test_slow_answers_do_not_pile_up(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url)
    open_panel(page)
    wait_for(page, "meter.metrics")
    held: list[Any] = []
    came = threading.Event()

    def hold(route: Any) -> None:
        held.append(route)
        came.set()

    page.route("**/metrics", hold)
    wait_for(page, "isPolling")
    while not came.is_set():
        # Not awaited: it may be the one that is held.
        page.evaluate("() => { poll(); }")
    page.evaluate("() => { for (let i = 0; i < 20; i++) poll(); }")
    page.evaluate("() => new Promise((done) => setTimeout(done, 0))")
    assert len(held) == 1
    held[0].continue_()


def test_it_goes_on_when_the_server_is_back(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    open_panel(page)
    wait_for(page, "meter.metrics")
    page.context.set_offline(True)
    page.wait_for_selector("text=The server has not answered since")
    page.context.set_offline(False)
    page.wait_for_selector("#banner", state="hidden")
    wait_for_look(page)


def test_refused_metrics_are_told_in_a_sentence(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, waits=False)
    error = {"error": {"message": "No."}}
    page.route("**/metrics", lambda route: route.fulfill(status=403, json=error))
    page.reload()
    open_panel(page)
    page.wait_for_selector("text=The metrics cannot be read: No.")
    # The page is silent about unknown facts.
    assert page.is_hidden(".chart") and page.is_hidden("#loop")
    page.unroute("**/metrics")
    page.wait_for_selector(".chart")
    assert page.is_visible("#loop")


def test_stalls_are_listed_by_task(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url)
    open_panel(page)
    # At once, because the page shows the server's own list every second.
    rows, is_visible = page.evaluate(r"""() => {
            const label = 'task="a.\\"b\\\\"';
            showStalls(readMetrics([
                `trioserve_slow_task_steps_total{${label}} 1200.0`,
                `trioserve_slow_task_seconds_total{${label}} 9.25`,
                `trioserve_slow_task_longest_seconds{${label}} 0.0123`,
            ].join("\n")));
            const cells = [...document.querySelectorAll("#stalls td")];
            return [cells.map((each) => each.textContent), byId("stalls").checkVisibility()];
        }""")
    assert rows == ['a."b\\', "1,200", "12 ms", "9.3 s"]
    assert is_visible
