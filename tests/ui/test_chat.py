"""The chat of the page, in a browser."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx

from trioserve.config import HttpConfig
from trioserve.testing.server import (
    FakeServer,
    open_fake_pooling_server,
    open_fake_server,
)
from trioserve.types.repetition import RepetitionDetection

from .conftest import (
    FAILED_LOAD,
    open_panel,
    run_server,
    wait_for,
    wait_for_look,
    wait_until,
)

OpenPage = Callable[..., Any]

ANSWERED = '#log[aria-busy="false"] .message.assistant .note'


def send(page: Any, text: str, **settings: object) -> None:
    if settings:
        page.locator("#settings").evaluate("node => { node.open = true; }")
    for name, value in settings.items():
        page.fill(f"#{name}", str(value))
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def find_bodies(page: Any) -> list[Any]:
    """Return a list to which the bodies of later chats are added."""
    bodies: list[Any] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(json.loads(request.post_data))

    page.on("request", note)
    return bodies


def send_and_list(page: Any, text: str, **settings: object) -> Any:
    """Send a text, and return the messages of the request."""
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page, text, **settings)
    return json.loads(sent.value.post_data)["messages"]


def test_an_answer_is_streamed_and_can_be_asked_for_again(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    bodies = find_bodies(page)
    send(page, "Hello", max_tokens=9, temperature=0.5, top_p=0.9, seed=7, system="Be.")
    page.wait_for_selector(ANSWERED)
    text = page.inner_text(".message.assistant .text")
    assert text and server.answer.startswith(text)
    note = page.inner_text(".message.assistant .note")
    assert "limit of tokens" in note and "9 tokens" in note
    with page.expect_request("**/v1/chat/completions"):
        page.click("text=Regenerate")
    page.wait_for_selector(ANSWERED)
    # The first answer is gone, and was not a part of the second request.
    assert page.locator(".message.assistant").count() == 1
    expected = {
        "messages": [
            {"role": "system", "content": "Be."},
            {"role": "user", "content": "Hello"},
        ],
        **{"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7},
    }
    assert [{name: body[name] for name in expected} for body in bodies] == [
        expected
    ] * 2
    # The conversation goes on with both turns.
    messages = send_and_list(page, "More", max_tokens="", system="")
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    # A new one forgets them, and the answer that is coming.
    page.wait_for_selector(".message.assistant:last-child .text:not(:empty)")
    page.click("#new")
    page.wait_for_selector('#log[aria-busy="false"]')
    assert page.locator(".message").count() == 0
    assert page.is_visible("#welcome")
    messages = send_and_list(page, "Other")
    assert messages == [{"role": "user", "content": "Other"}]


def test_an_answer_has_a_limit_and_can_go_on(
    tokenizer_folder: Path, open_page: OpenPage
) -> None:
    rule = RepetitionDetection(max_pattern_size=64, min_count=3)
    running = open_fake_server(
        tokenizer_folder, max_model_len=4096, stop_repetition=rule
    )
    with run_server(running) as server:
        page = open_page(server.url)
        assert page.get_attribute("#max_tokens", "placeholder") == "1024"
        bodies = find_bodies(page)
        send(page, "Hello")
        page.wait_for_selector(ANSWERED)
        assert bodies[-1]["max_tokens"] == 1024
        text = page.inner_text(".message.assistant .text").strip()
        assert text == (3 * server.answer).strip()
        assert "repeated itself" in page.inner_text(".message.assistant .note")
        page.locator("#settings").evaluate("node => { node.open = true; }")
        page.fill("#max_tokens", "9")
        for _ in range(2):
            with page.expect_request("**/v1/chat/completions"):
                page.click("text=Continue")
            page.wait_for_selector(ANSWERED)
            assert "limit of tokens" in page.inner_text(".message.assistant .note")
            question, begun = bodies[-1]["messages"]
            assert question == {"role": "user", "content": "Hello"}
            assert (begun["role"], begun["content"].strip()) == ("assistant", text)
            assert bodies[-1]["continue_final_message"] is True
            assert bodies[-1]["add_generation_prompt"] is False
            assert bodies[-1]["max_tokens"] == 9
            before, text = text, page.inner_text(".message.assistant .text").strip()
            assert len(text) > len(before) and text.startswith(before)
        page.fill("#schema", "{}")
        page.click("text=Continue")
        page.wait_for_selector("text=With a JSON schema an answer cannot go on")
        page.fill("#schema", "")
        assert page.inner_text(".message.assistant .text").strip() == text
        # It is still one message, with one row of buttons.
        assert page.locator(".message.assistant").count() == 1
        assert page.locator(".message.assistant .actions").count() == 1
        messages = send_and_list(page, "More")
        assert [each["role"] for each in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"].strip() == text


def test_without_room_for_the_limit_an_answer_has_what_is_left(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    bodies = find_bodies(page)
    # Little room is left, so the answer is soon there.
    send(page, "a " * 200, max_tokens=10_000)
    page.wait_for_selector(ANSWERED)
    assert [body.get("max_tokens") for body in bodies] == [10_000, None]
    # Others may be looks at a request that has just ended.
    assert len([each for each in page.failed_loads if "400" in each]) == 1
    assert "limit of tokens" in page.inner_text(".message.assistant .note")


def test_an_answer_that_is_stopped_is_cancelled_in_the_server(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    for way in ("Escape", "button"):
        send(page, "Hello")
        page.wait_for_selector(".message.assistant:last-child .text:not(:empty)")
        if way == "Escape":
            page.keyboard.press("Escape")
        else:
            page.click("#stop")
        page.wait_for_selector("text=Stopped.")
        wait_until(lambda: server.engine.statistics().num_streams == 0)
        assert page.inner_text(".message.assistant:last-child .text")
        assert page.is_visible("#send") and not page.is_visible("#stop")
        page.click("#new")


def test_an_event_is_the_same_however_its_bytes_are_cut(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    text = 'data: {"a": "ä"}\n\n: comment\n\ndata: {"b":\r\ndata: 2}\r\n\r\ndata: [DONE]\n\n'
    wrong = page.evaluate(
        """async text => {
            const bytes = new TextEncoder().encode(text);
            for (let size = 1; size <= bytes.length; size++) {
                const body = new ReadableStream({start(controller) {
                    for (let i = 0; i < bytes.length; i += size) {
                        controller.enqueue(bytes.subarray(i, i + size));
                    }
                    controller.close();
                }});
                const events = [];
                for await (const event of readEvents({body})) events.push(event);
                if (JSON.stringify(events) !== '[{"a":"ä"},{"b":2},null]') return [size, events];
            }
        }""",
        text,
    )
    assert wrong is None


def test_the_page_rests_when_an_answer_is_slow_to_show(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    shown = page.evaluate("""async () => {
            const frames = async () => {
                for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
            };
            let now = 0, numShown = 0;
            performance.now = () => now;
            const message = shown.add({role: "assistant", parent: ""});
            const view = new Answer(shown, message);
            view.show = () => { now += 100; numShown++; };
            const counts = [];
            for (const time of [0, 399, 400]) {
                now = Math.max(now, time);
                view.take({choices: [{delta: {content: "a"}}]});
                await frames();
                counts.push(numShown);
            }
            return counts;
        }""")
    assert shown == [1, 1, 2]


def test_a_tab_tells_proxies_that_it_is_one_session(
    server: FakeServer, open_page: OpenPage
) -> None:
    def list_sessions() -> set[str | None]:
        page = open_page(server.url)
        seen = set()
        page.on("request", lambda each: seen.add(each.headers.get("x-session-id")))
        send(page, "Hello", max_tokens=3)
        page.wait_for_selector(ANSWERED)
        open_panel(page)
        wait_for_look(page)
        return seen

    [one], [other] = list_sessions(), list_sessions()
    assert one and other and one != other


def test_a_key_is_asked_for_and_kept_in_the_tab(
    tokenizer_folder: Path, open_page: OpenPage
) -> None:
    config = HttpConfig(api_key=("sk-one",), guard_metrics=True)
    with run_server(open_fake_server(tokenizer_folder, http=config)) as server:
        page = open_page(server.url, waits=False)
        page.fill("#key", "ключ")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=A key has visible ASCII characters alone.")
        page.fill("#key", "sk-wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=The server does not know the key.")
        # Who closes the question can come back to it.
        page.keyboard.press("Escape")
        send(page, "Early")
        page.get_by_text("The server needs a key before it answers.").wait_for()
        page.click("text=Enter a key")
        page.fill("#key", "sk-one")
        page.keyboard.press("Enter")
        wait_for(page, "server.model")
        assert page.is_hidden("#banner") and page.is_hidden("#hint")
        assert page.evaluate("document.activeElement.id") == "prompt"
        assert page.input_value("#prompt") == "Early"
        stored = page.evaluate("[{...sessionStorage}, {...localStorage}]")
        assert stored == [{"trioserve-key": "sk-one"}, {}]
        open_panel(page)
        wait_for(page, "meter.metrics")
        assert all(FAILED_LOAD in each and "401" in each for each in page.failed_loads)
        num_failed = len(page.failed_loads)
        send(page, "Hello", max_tokens=3)
        page.wait_for_selector(ANSWERED)
        page.reload()
        wait_for(page, "server.model")
        assert len(page.failed_loads) == num_failed
        page.click("text=Forget key")
        page.wait_for_selector("#key-dialog[open]")
        assert page.evaluate("sessionStorage.length") == 0
        # A browser that keeps nothing has it as long as the document.
        page.add_init_script("""Object.defineProperty(window, "sessionStorage", {
            get() { throw new DOMException("Blocked.", "SecurityError"); },
        });""")
        page.reload()
        page.fill("#key", "sk-one")
        page.keyboard.press("Enter")
        wait_for(page, "server.model")
        page.click("#to-list")
        send(page, "Hello", max_tokens=3)
        page.wait_for_selector(ANSWERED)


def test_an_answer_that_is_none_is_told_as_it_is(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url)
    answers = {
        "data: no\n\n": (200, "The server failed: A part of the answer is not a JSON object."),
        'data: {"error": "Full."}\n\n': (200, "The server failed: Full."),
        'data: {"choices": [{}]}\n\ndata: [DONE]\n\n': (200, "The answer is empty."),
        '{"error": "Too long."}': (413, "Refused: Too long."),
        "{}": (404, "Refused: The server answered 404."),
    }  # fmt: skip
    for body, (status, note) in answers.items():
        answer = {"status": status, "body": body}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
        send(page, "Hello")
        page.wait_for_selector(f"text={note}")
        assert page.is_hidden("#banner"), body
        page.unroute("**/v1/chat/completions")


def test_reasoning_is_folded(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url)
    page.evaluate("""() => {
            const view = new Answer(shown, shown.add({role: "assistant", parent: ""}));
            view.begin();
            view.take({choices: [{delta: {reasoning: "Hm, *two*."}}]});
            view.take({choices: [{delta: {content: "Four."}, finish_reason: "stop"}]});
            view.finish("");
        }""")
    assert not page.is_visible(".reasoning .text")
    page.click("summary:has-text('Reasoning')")
    assert page.inner_text(".reasoning .text") == "Hm, two."
    assert page.inner_text(".message > .text") == "Four."


def test_images_are_sent_where_the_model_sees(
    tokenizer_folder: Path, tmp_path: Path, open_page: OpenPage, server: FakeServer
) -> None:
    assert open_page(server.url).is_hidden("#attach")
    picture = tmp_path / "dot.gif"
    picture.write_bytes(
        b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00"
        b"\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
    )
    page = open_page(server.url, waits=False)

    def answer(route: Any) -> None:
        card = httpx.get(f"{server.url}/v1/models").json()
        card["data"][0]["architecture"]["input_modalities"] = ["text", "image"]
        route.fulfill(json=card)

    page.route("**/v1/models", answer)
    page.reload()
    wait_for(page, "server.model")
    bodies = find_bodies(page)
    page.set_input_files("#file", picture)
    page.wait_for_selector("#attached img")
    send(page, "What is this?")
    # The server refuses it, because its model does not see.
    page.wait_for_selector(".note.wrong")
    image, text = bodies[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/gif;base64,R0lGODlh")
    assert text == {"type": "text", "text": "What is this?"}
    is_shown = "document.querySelector('.message.user img')?.naturalWidth === 1"
    wait_for(page, is_shown)
    # It is there again after F5, with the question.
    page.reload()
    wait_for(page, is_shown)
    # Without room for it, the question is kept alone.
    page.evaluate("""() => {
            const { put } = IDBObjectStore.prototype;
            IDBObjectStore.prototype.put = function (row) {
                if (row.images) throw new DOMException("No room.", "QuotaExceededError");
                return put.call(this, row);
            };
        }""")
    page.set_input_files("#file", picture)
    page.wait_for_selector("#attached img")
    send(page, "And this?")
    wait_for(page, "document.querySelectorAll('.refused').length === 2")
    page.evaluate("() => saving")
    assert "no room for the images" in str(page.text_content(".storage-note"))
    page.reload()
    wait_for(page, "document.querySelectorAll('.refused').length === 2")
    assert page.locator(".message img").count() == 1


def test_a_model_that_pools_has_no_chat(
    tokenizer_folder: Path, open_page: OpenPage
) -> None:
    with run_server(open_fake_pooling_server(tokenizer_folder)) as server:
        page = open_page(server.url)
        assert page.is_hidden("#chat") and page.is_hidden("#to-chat")
        assert "no chat here" in page.inner_text("#live")
        wait_for(page, "meter.metrics")
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.is_visible("#live")


def test_a_tab_chooses_among_the_model_and_its_adapters(
    tokenizer_folder: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    (tmp_path / "answer.txt").write_text("Bonjour le monde! ")
    http = HttpConfig(adapter_folder=(str(tmp_path),))
    with run_server(open_fake_server(tokenizer_folder, http=http)) as server:
        adapters = f"{server.url}/v1/%s_lora_adapter"
        page = open_page(server.url)
        assert page.is_hidden("#models") and page.is_visible("#model")
        body = {"lora_name": "<b>french", "lora_path": str(tmp_path)}
        assert httpx.post(adapters % "load", json=body).is_success
        page.evaluate("connect()")
        page.wait_for_selector("#models")
        assert page.is_hidden("#model")
        page.select_option("#models", "<b>french")
        bodies = find_bodies(page)
        send(page, "Hi")
        wait_for(page, "document.querySelector('#chat').innerText.includes('Bonjour')")
        assert bodies[0]["model"] == "<b>french"
        page.reload()
        wait_for(page, "server.model")
        assert page.input_value("#models") == "<b>french"
        assert httpx.post(adapters % "unload", json=body).is_success
        page.evaluate("connect()")
        wait_for(page, "server.model.id === 'fake'")
        assert page.is_hidden("#models")
        # Of several models, each has a state, and one that was never loaded has no more.
        shown = page.evaluate("""() => {
            showModels([
                { id: "a", parent: null, status: { value: "loading", num_waiting: 1 } },
                { id: "x", parent: "a", status: { value: "loading" } },
                { id: "b", parent: null, status: { value: "failed", reason: "gone" } },
                { id: "c", parent: null, status: { value: "loaded", memory_bytes: 3 << 29 } },
            ]);
            return [...document.querySelectorAll("#models option, #states:not([hidden]) li > *")]
                .map(({ textContent }) => textContent);
        }""")
        assert shown == [
            *("a (loading)", "x (loading)", "b (failed)", "c"),
            *("a", "loading", "1 request waits; adapters: x"),
            *("b", "failed", "", "gone"),
            *("c", "loaded", "1.5 GiB"),
        ]
        assert page.is_visible("#chat")
