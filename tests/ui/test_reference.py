"""The description of the API at /docs, in a browser."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from trioserve.config import HttpConfig
from trioserve.testing.server import FakeServer, open_fake_server

from .conftest import run_server, wait_for

OpenPage = Callable[..., Any]

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 375, "height": 800}

CHAT = "#post-v1-chat-completions"


def open_reference(open_page: OpenPage, server: FakeServer, **options: Any) -> Any:
    page = open_page(server.url, **options)
    page.click("#to-docs")
    page.wait_for_selector("#tools", state="visible")
    return page


def list_shown(page: Any, selector: str) -> list[str]:
    return [each for each in page.locator(f"{selector}:visible").all_inner_texts()]


def test_the_description_is_short_and_unfolds_where_there_is_room(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_reference(open_page, server, viewport=WIDE)
    # All endpoints and objects in one long column took 61,000 pixels.
    assert page.evaluate("document.documentElement.scrollHeight") < 35_000
    rows = page.locator("tbody tr")
    assert rows.count() == page.locator(".endpoint").count()
    assert rows.nth(0).inner_text().split("\t") == [
        "POST",
        "/v1/chat/completions",
        "Answer a conversation, at once or as server-sent events.",
    ]
    # What differs in the path alone is one.
    assert page.inner_text("tr:has-text('/v2/rerank') td:nth-child(2)") == (
        "/rerank, /v1/rerank, /v2/rerank"
    )
    field = page.locator(f"{CHAT} code:text-is('temperature')")
    assert field.is_visible()
    page.set_viewport_size(NARROW)
    field.wait_for(state="hidden")
    # A link leads to the fields of an object, which are folded here.
    page.click(f"{CHAT} a:text-is('ChatChunk')")
    page.wait_for_selector("#schema-ChatChunk code:text-is('choices')")
    assert page.is_hidden("#schema-ChatCompletion code:text-is('choices')")
    # The fields of a request are at its endpoint alone.
    page.goto(f"{server.url}/docs#schema-CompletionRequest")
    page.wait_for_selector("#post-v1-completions code:text-is('best_of')")
    assert page.locator("code:text-is('best_of')").count() == 1
    page.click("text=Back to the page")
    page.wait_for_url(f"{server.url}/")
    page.wait_for_selector("#prompt")


def test_a_filter_finds_endpoints_objects_and_fields(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_reference(open_page, server, viewport=NARROW)
    page.keyboard.press("/")
    page.keyboard.type("TOP_K")
    wait_for(page, "byId('found').textContent")
    found = page.inner_text("#found")
    assert found.rstrip("s") == (
        f"{len(list_shown(page, '.endpoint'))} endpoints, "
        f"{len(list_shown(page, '.object'))} object"
    )
    # The fields that were found are unfolded, without the others.
    assert list_shown(page, f"{CHAT} dt") == ["top_k"]
    assert page.is_hidden("#get-v1-models")
    assert page.is_hidden("tr:has-text('/v1/models')")
    page.fill("#filter", "get v1/models")
    assert list_shown(page, ".endpoint h3") == [
        "GET /v1/models",
        "GET /v1/models/{model}",
    ]
    assert page.inner_text("#found") == "2 endpoints, 0 objects"
    page.fill("#filter", "nothing has this")
    assert page.inner_text("#found") == "Nothing has these words."
    assert list_shown(page, ":is(h2, table)") == []
    page.fill("#filter", "")
    assert page.is_visible(CHAT) and page.inner_text("#found") == ""


def test_an_example_is_copied_with_the_address(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_reference(
        open_page, server, permissions=["clipboard-read", "clipboard-write"]
    )
    ways = {"the clipboard": "", "the old way": "delete Navigator.prototype.clipboard"}
    read = page.evaluate_handle("navigator.clipboard")
    for way, change in ways.items():
        page.evaluate(change)
        page.click(f"{CHAT} button:has-text('Copy')")
        page.wait_for_selector(f"{CHAT} button:text-is('Copied')")
        text = read.evaluate("clipboard => clipboard.readText()")
        assert text.startswith(f'curl "{server.url}/v1/chat/completions" -H '), way
        page.wait_for_selector(f"{CHAT} button:text-is('Copy')")
        read.evaluate("clipboard => clipboard.writeText('')")


def try_endpoint(page: Any, anchor: str) -> Any:
    page.click(f"{anchor} button:text-is('Try it')")
    return page.locator(f"{anchor} .trial")


def test_an_example_is_tried_with_the_key_of_the_page(
    tokenizer_folder: Path, open_page: OpenPage
) -> None:
    config = HttpConfig(api_key=("sk-one",))
    with run_server(open_fake_server(tokenizer_folder, http=config)) as server:
        page = open_page(server.url, waits=False)
        page.fill("#key", "sk-one")
        page.keyboard.press("Enter")
        page = open_reference(lambda *_, **__: page, server)
        assert page.input_value("#key") == "sk-one"
        trial = try_endpoint(page, "#get-v1-models-model")
        trial.locator("text=Send").click()
        assert trial.locator(".status").inner_text() == "The path needs model."
        trial.get_by_label("model").fill("fake")
        trial.locator("text=Send").click()
        trial.locator("text=/^200, application.json, [0-9.]+ s$/").wait_for()
        assert json.loads(trial.locator(".answer").inner_text())["id"] == "fake"
        # An example that names a model names the model of this server.
        trial = try_endpoint(page, "#post-v1-messages-count-tokens")
        wait_for(page, "model")
        assert json.loads(trial.get_by_label("Body").input_value())["model"] == "fake"
        page.fill("#key", "sk-wrong")
        trial.locator("text=Send").click()
        trial.locator("text=put the key of this server").wait_for()
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", "")
        assert page.evaluate("sessionStorage.length") == 0


def test_a_stream_is_shown_as_it_comes(server: FakeServer, open_page: OpenPage) -> None:
    page = open_reference(open_page, server)
    trial = try_endpoint(page, CHAT)
    trial.get_by_label("As a stream").check()
    body = json.loads(trial.get_by_label("Body").input_value())
    assert body["stream"] is True
    trial.locator("text=Send").click()
    trial.locator("text=/^200, text.event-stream, [0-9.]+ s$/").wait_for()
    answer = trial.locator(".answer")
    assert answer.inner_text().rstrip().endswith("data: [DONE]")
    assert answer.evaluate("node => node.childNodes.length") > 1
    # One that does not come can be stopped.
    page.route("**/v1/chat/completions", lambda route: None)
    trial.locator("text=Send").click()
    trial.locator("text=Stop").click()
    trial.locator("text=Stopped.").wait_for()
    page.unroute("**/v1/chat/completions")
    # A wrong field is told as the server tells it.
    trial.get_by_label("Body").fill('{"messages": [], "temperature": -1}')
    trial.locator("text=Send").click()
    trial.locator(".status.wrong:has-text('400')").wait_for()
    assert json.loads(trial.locator(".answer").inner_text())["error"]["message"]
    trial.get_by_label("Body").fill("{")
    trial.get_by_label("As a stream").uncheck()
    trial.locator("text=The body is not JSON").wait_for()
    page.click(f"{CHAT} button:text-is('Try it')")
    assert trial.count() == 0
