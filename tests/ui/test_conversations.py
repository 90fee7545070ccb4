"""Conversations: their messages and branches, and what the browser keeps of them."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from trioserve.testing.server import FakeServer

from .conftest import wait_for, wait_until
from .test_chat import find_bodies, send

OpenPage = Callable[..., Any]

# Each test has a browser context of its own, and so a database of its own.
OWN = {"viewport": {"width": 900, "height": 700}}
# The list stays open beside the chat.
WIDE = {"viewport": {"width": 1280, "height": 700}}


def ask(page: Any, text: str) -> None:
    """Ask a question and wait for its answer, which is short."""
    send(page, text, max_tokens=3)
    wait_for_answer(page)


def wait_for_answer(page: Any) -> None:
    page.wait_for_selector('#log[aria-busy="false"]')
    wait_for_kept(page)


def wait_for_kept(page: Any) -> None:
    page.evaluate("() => saving")


def list_texts(page: Any) -> list[str]:
    texts = page.locator(".message .text").all_inner_texts()
    return [text.strip() for text in texts]


def act(page: Any, selector: str, name: str) -> None:
    """Press a button of a message."""
    message = page.locator(selector)
    message.hover()
    message.get_by_role("button", name=name, exact=True).click()


def test_a_question_without_an_answer_is_marked_and_left_out(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **OWN)
    bodies = find_bodies(page)
    chat = "**/v1/chat/completions"
    error = {"error": {"message": "A fault."}}
    ways: dict[str, tuple[Any, str]] = {
        "word " * 400: (None, "Refused: "),
        "fails": (lambda route: route.fulfill(status=500, json=error), "A fault."),
        "breaks": (lambda route: route.abort(), "The connection was lost."),
    }
    for i, (text, (answer, note)) in enumerate(ways.items()):
        if answer:
            page.route(chat, answer)
        send(page, text)
        wait_for(page, f"document.querySelectorAll('.refused').length === {i + 1}")
        assert note in page.locator(".note.wrong").nth(i).inner_text()
        if answer:
            page.unroute(chat)
        wait_for(page, "!server.isDown")
    act(page, ".message.last", "Ask again")
    wait_for_answer(page)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "breaks"}]
    ask(page, "Hello")
    messages = [each["content"] for each in bodies[-1]["messages"]]
    assert len(messages) == 3 and messages[::2] == ["breaks", "Hello"]
    # The others are still there, and still marked, and can be deleted or asked again.
    page.reload()
    wait_for(page, "document.querySelectorAll('.refused').length === 2")
    assert page.locator(".mark:visible").all_inner_texts() == ["not answered"] * 2
    act(page, ".refused >> nth=0", "Delete")
    assert list_texts(page)[:2] == ["fails", "breaks"]
    act(page, ".refused", "Edit")
    page.get_by_label("Edit the question").fill("Goes")
    page.get_by_role("button", name="Ask again").click()
    wait_for_answer(page)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "Goes"}]
    assert list_texts(page)[0] == "Goes" and len(list_texts(page)) == 2
    assert page.locator(".refused").count() == 0
    # The server's own refusals and the routes' errors.
    assert len(page.failed_loads) >= 4


def test_messages_are_edited_branched_and_deleted(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **OWN)
    bodies = find_bodies(page)
    ask(page, "One")
    ask(page, "Two")
    [_, first, _, second] = list_texts(page)
    act(page, ".message.user >> nth=0", "Edit")
    page.keyboard.press("Control+a")
    page.keyboard.type("Three")
    page.keyboard.press("Control+Enter")
    wait_for_answer(page)
    assert list_texts(page)[0] == "Three" and len(list_texts(page)) == 2
    assert bodies[-1]["messages"] == [{"role": "user", "content": "Three"}]
    # The old branch has all that followed. The focus stays at the arrows.
    assert page.inner_text(".branches") == "‹\n2/2\n›"
    page.get_by_role("button", name="Earlier branch").click()
    assert list_texts(page) == ["One", first, "Two", second]
    assert page.evaluate("document.activeElement.ariaLabel") == "Later branch"
    page.keyboard.press("Enter")
    assert list_texts(page)[0] == "Three"
    # An answer that is written again is a branch, too.
    act(page, ".message.assistant", "Regenerate")
    wait_for_answer(page)
    assert bodies[-1]["messages"] == [{"role": "user", "content": "Three"}]
    assert page.locator(".branches:has(button)").count() == 2
    act(page, ".message.assistant", "Edit")
    page.get_by_label("Edit the answer").fill("Mine")
    page.get_by_role("button", name="Save as a branch").click()
    assert list_texts(page) == ["Three", "Mine"]
    assert "3/3" in page.inner_text(".message.assistant .branches")
    act(page, ".message.assistant", "Edit")
    page.get_by_label("Edit the answer").fill("Mine, too")
    page.get_by_role("button", name="Save", exact=True).click()
    assert list_texts(page) == ["Three", "Mine, too"]
    assert page.evaluate("document.activeElement.textContent") == "Edit"
    # Who escapes changes nothing.
    act(page, ".message.user", "Edit")
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Edit"
    ask(page, "Four")
    assert [each["content"] for each in bodies[-1]["messages"]] == [
        "Three",
        "Mine, too",
        "Four",
    ]
    texts = list_texts(page)
    # A question whose answer is deleted is left out, and says so.
    act(page, ".message.assistant.last", "Delete")
    assert page.inner_text(".message.last .mark") == "not answered"
    assert "without this one" in page.inner_text(".message.last .note")
    page.keyboard.press("Enter")
    assert page.locator(".mark:visible").count() == 0
    act(page, ".message.assistant >> nth=0", "Delete")
    page.get_by_text("3 messages are deleted.").wait_for()
    assert list_texts(page)[0] == "Three" and "2/2" in page.inner_text(
        ".message.assistant .branches"
    )
    page.keyboard.press("Enter")
    assert list_texts(page) == texts
    wait_for_kept(page)
    page.reload()
    wait_for(page, "shown.messages.size > 0")
    assert list_texts(page) == texts


def test_a_title_goes_and_changes_with_its_question(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **WIDE)
    page.click("#to-list")
    titles = page.locator("#conversations .title")

    def wait_for_title(title: str) -> None:
        wait_until(lambda: titles.all_inner_texts() == [title])
        assert page.title() == f"{title} · trioserve"

    def write(text: str) -> None:
        act(page, ".message.user", "Edit")
        page.get_by_label("Edit the question").fill(text)

    ask(page, "A secret")
    write("Another secret")
    page.get_by_role("button", name="Save").click()
    wait_for_title("Another secret")
    write("Foxes")
    page.get_by_role("button", name="Ask again").click()
    wait_for_answer(page)
    page.get_by_role("button", name="Earlier branch").click()
    act(page, ".message.user", "Delete")
    wait_for_title("Foxes")
    page.keyboard.press("Enter")
    wait_for_title("Another secret")
    act(page, ".message.user", "Delete")
    wait_for_title("Foxes")
    act(page, ".message.user", "Delete")
    wait_until(lambda: titles.count() == 0)
    ask(page, "Wolves")
    wait_for_title("Wolves")
    # A name that somebody has given stays.
    page.click("#conversations summary")
    page.click("#conversations >> text=Rename")
    page.keyboard.type("Animals")
    page.keyboard.press("Enter")
    wait_for_title("Animals")
    write("Bears")
    page.get_by_role("button", name="Save").click()
    wait_for_kept(page)
    wait_for_title("Animals")


def test_conversations_survive(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, **OWN)
    ask(page, "The first question\nof two lines")
    texts = list_texts(page)
    page.click("#new")
    ask(page, "About foxes")
    # Back leads to the new chat and to the conversation before it.
    page.go_back()
    wait_for(page, "byId('log').innerText.includes('of two lines')")
    assert list_texts(page) == texts
    # A page that is left has the beginning of an answer.
    page.evaluate("""() => {
            const parent = shown.listPath().at(-1).message.id;
            const question = shown.add({role: "user", parent, text: "Much"});
            keep(shown, [question]);
            const half = new Answer(shown, shown.add({role: "assistant", parent: question.id}));
            shown.run = globalThis.half = half;
            half.begin();
            half.take({choices: [{delta: {content: "Half an"}}]});
        }""")
    wait_for(page, "half.keptAt > 0")
    wait_for_kept(page)
    page.reload()
    page.get_by_text("The answer is not complete.").wait_for()
    page.wait_for_selector("text=Continue")
    # So has the live view, which is beside the chat or in its place.
    page.click("#to-live")
    page.reload()
    wait_for(page, "shown.messages.size === 4")
    page.click("#to-chat")
    page.get_by_text("The answer is not complete.").wait_for()
    # Another tab has the list, by the time of the last change.
    other = page.context.new_page()
    other.goto(server.url)
    assert other.is_visible("#welcome")
    other.click("#to-list")
    entries = other.locator("#conversations li")
    entries.nth(1).wait_for()
    assert entries.locator(".title").all_inner_texts() == [
        "The first question",
        "About foxes",
    ]
    assert ", 20" in entries.nth(0).locator(".when").inner_text()
    other.fill("#search", "LINES")
    wait_until(lambda: entries.count() == 1)
    assert "of two lines" in entries.locator(".place").inner_text()
    other.fill("#search", "nowhere")
    other.get_by_text("No conversation has these words.").wait_for()
    other.fill("#search", "about foxes")
    wait_until(lambda: entries.locator(".title").all_inner_texts() == ["About foxes"])
    entries.locator("summary").click()
    entries.get_by_role("button", name="Rename").click()
    other.keyboard.type("Animals")
    other.keyboard.press("Enter")
    wait_until(lambda: entries.locator(".title").all_inner_texts() == ["Animals"])
    entries.get_by_role("button", name="Delete").click()
    other.get_by_text("The conversation is deleted.").wait_for()
    wait_until(lambda: entries.count() == 0)
    other.keyboard.press("Enter")
    wait_until(lambda: entries.locator(".title").all_inner_texts() == ["Animals"])
    entries.locator("a").click()
    wait_for(other, "!list.open && byId('log').innerText.includes('foxes')")


def test_tabs_keep_what_others_have_written(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **OWN)
    ask(page, "One")
    other = page.context.new_page()
    other.goto(page.url)
    wait_for(other, "server.model && shown.messages.size === 2")
    ask(page, "Two")
    wait_for(other, "shown.messages.size === 4")
    assert list_texts(other) == list_texts(page)
    # Both go on from the same place, while one has not heard of the other.
    other.evaluate("() => { noteOtherTab = () => {}; }")
    ask(page, "Three of one")
    ask(other, "Three of other")
    other.reload()
    for each, own in ((page, "Three of one"), (other, "Three of other")):
        wait_for(each, "shown.messages.size === 8")
        assert "/2" in each.inner_text(".message.user >> nth=2 >> css=.branches")
        assert own in list_texts(each)
    page.click("#to-list")
    page.click("#conversations summary")
    page.click("#conversations >> text=Delete")
    other.get_by_text("This conversation was deleted in another tab.").wait_for()
    assert other.locator(".message").count() == 0


def test_conversations_are_files_and_can_be_forgotten(
    server: FakeServer, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(server.url, **OWN)
    for text in ("One", "Two"):
        ask(page, text)
        act(page, ".message.last", "Regenerate")
        wait_for_answer(page)
        page.click("#new")
    page.click("#to-list")
    with page.expect_download() as download:
        page.click("#export-all")
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    entries = page.locator("#conversations li")
    entries.locator("summary").nth(1).click()
    with page.expect_download() as download:
        entries.get_by_role("button", name="Markdown").click()
    assert download.value.suggested_filename == "One.md"
    markdown = tmp_path / download.value.suggested_filename
    download.value.save_as(markdown)
    text = markdown.read_text("utf-8")
    assert text.startswith("# One\n\n## You\n\nOne\n\n## Answer of fake\n\n")
    page.click("#forget-all")
    page.click("#forget-cancel")
    assert entries.count() == 2
    page.click("#forget-all")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("All conversations are forgotten.").wait_for()
    wait_until(lambda: entries.count() == 0)
    for expected in ("2 of 2", "0 of 2"):
        page.set_input_files("#import-file", path)
        page.get_by_text(f"{expected} conversations are new here.").wait_for()
    assert entries.locator(".title").all_inner_texts() == ["Two", "One"]
    entries.locator("a").nth(1).click()
    wait_for(page, "shown.title === 'One' && shown.messages.size === 3")
    assert "2/2" in page.inner_text(".message.assistant .branches")
    # When a conversation has gone on, the state of the file is kept beside it, once.
    ask(page, "More")
    page.click("#to-list")
    for expected in ("1 of 2", "0 of 2"):
        page.set_input_files("#import-file", path)
        page.get_by_text(f"{expected} conversations are new here.").wait_for()
    assert entries.locator(".title").all_inner_texts() == ["One", "Two", "One"]
    # Markdown has one branch, and headings of its own.
    image = "![a](data:image/png;base64,AA)"
    text = text.replace("You\n\nOne", f"You\n\n{image}\n\n## One").replace("\n", "\r\n")
    markdown.write_text(f"{text}\r\n## You\r\n\r\nTwo\r\n", "utf-8", newline="")
    for expected in ("1 of 1", "0 of 1"):
        page.set_input_files("#import-file", markdown)
        page.get_by_text(f"{expected} conversations are new here.").wait_for()
    entries.locator("a", has_text="One").first.click()
    wait_for(page, "shown.messages.size === 3")
    [question, _, last] = list_texts(page)
    assert (question, last) == ("## One", "Two")
    assert page.locator(".message >> nth=0 >> css=.pictures img").count() == 1
    assert page.locator(".who").all_inner_texts() == ["You", "fake", "You"]


def test_a_file_from_elsewhere_may_have_anything_in_it(
    server: FakeServer, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(server.url, **WIDE)
    page.click("#to-list")
    entries = page.locator("#conversations li")
    question = {"id": "q", "parent": "", "role": "user", "text": "Q", "created": 1}
    answer = {"id": "a", "parent": "q", "role": "assistant", "text": "A"}

    def write(name: str, *messages: object, **fields: object) -> Path:
        conversation = {"id": name, "title": name, "messages": messages, **fields}
        kept = {"format": "trioserve-conversations", "conversations": [conversation]}
        # Python writes Infinity, which JSON does not have.
        text = json.dumps(kept).replace("Infinity", "1e999")
        (tmp_path / name).write_text(text)
        return tmp_path / name

    def read(*paths: Path) -> str:
        page.evaluate("noteList('')")
        page.set_input_files("#import-file", paths)
        page.wait_for_selector("#list-note")
        return str(page.inner_text("#list-note"))

    (tmp_path / "json").write_text("{")
    (tmp_path / "format").write_text("{}")
    refused = [
        (tmp_path / "json", "JSON"),
        (tmp_path / "format", "it was not written by this page"),
        (write("text", question | {"text": 3}), "no id, parent, role or text"),
        (write("empty"), "do not lead to a first one"),
        (write("nobody", answer), "do not lead to a first one"),
        (write("own", question, answer | {"parent": "a"}), "do not lead"),
        (
            write(
                "ring",
                question,
                *(answer | {"id": a, "parent": b} for a, b in ("xy", "yx")),
            ),
            "do not lead",
        ),
        (write("unnamed", question | {"id": ""}), "no id of its own"),
        (write("twice", question, question), "no id of its own"),
    ]
    # Each file that is refused is named, also when others follow.
    note = read(*(path for path, _ in refused), write("good", question, changed=5))
    for path, why in refused:
        assert f"{path.name} has no conversations" in note, path.name
        assert why in note.partition(f"{path.name} has")[2], path.name
    assert note.endswith("good: 1 of 1 conversations are new here.")
    # What is taken can be listed and opened.
    for name, fields in {
        "infinite": {"changed": float("inf")},
        "late": {"changed": 8.65e15},
        "early": {"changed": -1e300},
        "undated": {},
        "spaced": {"id": "a b<é>"},
        "unnamed": {"id": ""},
        "long": {"title": "long" + "g" * 20_000},
    }.items():
        file = write(name, question, answer | {"reason": "constructor"}, **fields)
        assert "1 of 1" in read(file), name
        assert name == "unnamed" or "0 of 1" in read(file), name
        entry = entries.locator("a").filter(has_text=name)
        entry.click()
        wait_for(page, f"shown.title.startsWith({name!r}) && shown.messages.size === 2")
        if "id" in fields:
            page.reload()
            wait_for(page, "shown.messages.size === 2")
        assert list_texts(page) == ["Q", "A"], name
        assert page.locator(".note, [data-act=continue]").count() == 0, name
        entry.wait_for()
        assert len(entry.locator(".title").inner_text()) <= 200, name
    assert entries.count() == 8
    # A row of an older page may be without a date, too.
    page.evaluate("""() => useStore((store) => {
            return store.save({id: "old", title: "Old", changed: Infinity}, [], [], true);
        })""")
    page.reload()
    wait_until(lambda: entries.count() == 9)
    # An SVG may take for ever to be drawn.
    images = [
        {"name": each, "url": f"data:image/{each};base64,AA"}
        for each in ("SVG+xml", "png")
    ]
    assert "1 of 1" in read(write("images", question | {"images": images}))
    entries.locator("a").filter(has_text="images").click()
    page.wait_for_selector(".pictures img")
    assert page.locator(".pictures img").get_attribute("alt") == "png"


def test_the_page_says_for_how_long_it_has_no_room(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **OWN)
    # A quota of the browser itself would refuse texts and images alike.
    page.evaluate("""() => {
            const put = IDBObjectStore.prototype.put;
            globalThis.hasRoomFor = () => false;
            IDBObjectStore.prototype.put = function (row) {
                if (!hasRoomFor(row)) throw new DOMException("", "QuotaExceededError");
                return put.call(this, row);
            };
        }""")
    note = page.locator("#welcome .storage-note")
    ask(page, "One")
    assert "there is no room left." in note.text_content()
    page.evaluate("() => { hasRoomFor = (row) => !row.images; }")
    picture = {"name": "a.png", "url": "data:image/png;base64,AA"}
    page.evaluate("picture => attached.push(picture)", picture)
    ask(page, "Two")
    assert "has no room for the images" in note.text_content()
    page.evaluate("() => { hasRoomFor = () => true; }")
    ask(page, "Three")
    assert note.text_content() == ""
    page.reload()
    wait_for(page, "shown.messages.size >= 4")
    assert page.locator(".pictures img").count() == 1


def test_without_a_database_the_page_says_that_nothing_is_kept(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, waits=False, **OWN)
    page.add_init_script("""Object.defineProperty(window, "indexedDB", {
            get() { throw new DOMException("No.", "SecurityError"); },
        })""")
    page.reload()
    wait_for(page, "server.model")
    page.wait_for_selector("#welcome >> text=This browser keeps nothing here")
    assert page.is_hidden("#keeps")
    ask(page, "One")
    page.click("#new")
    ask(page, "Two")
    # In the tab, there is still a list.
    page.click("#to-list")
    page.click("#conversations >> text=One")
    wait_for(page, "byId('log').innerText.includes('One')")
    page.reload()
    wait_for(page, "server.model")
    assert page.is_visible("#welcome")


def test_a_question_waits_for_the_end_of_an_answer(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, **OWN)
    bodies = find_bodies(page)
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route), times=1)
    send(page, "One", max_tokens=3)
    for text in ("Two", "Three"):
        send(page, text)
    queued = page.locator("#queued li")
    assert queued.locator("span").all_inner_texts() == ["Two", "Three"]
    page.get_by_role("button", name="Remove Two").click()
    assert page.evaluate("document.activeElement.id") == "prompt"
    wait_until(lambda: bool(page.evaluate("1") and held))
    held.pop().continue_()
    page.locator(".message.user:has-text('Three')").wait_for()
    assert queued.count() == 0
    wait_for_answer(page)
    assert [each["messages"][-1]["content"] for each in bodies] == ["One", "Three"]
    # After a stop, it waits for the user.
    page.route("**/v1/chat/completions", lambda route: held.append(route), times=1)
    send(page, "Four")
    send(page, "Five")
    page.keyboard.press("Escape")
    page.get_by_text("Queued. Send asks it.").wait_for()
    assert queued.count() == 1
    page.click("#send")
    # A mouse leaves the cursor where one writes.
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.locator(".message.user:has-text('Five')").wait_for()
    wait_for_answer(page)
    # Up recalls the last questions, and leaves a text alone.
    # In several lines, it moves the cursor first.
    ask(page, "Six\nand")
    for key, expected in [
        ("ArrowUp", "Six\nand"),
        ("ArrowUp", "Six\nand"),
        ("ArrowUp", "Five"),
        ("ArrowUp", "Four"),
        ("ArrowDown", "Five"),
        ("ArrowDown", "Six\nand"),
        ("ArrowDown", ""),
        ("ArrowDown", ""),
    ]:
        page.keyboard.press(key)
        assert page.input_value("#prompt") == expected, key
    page.keyboard.type("x")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#prompt") == "x"


def test_questions_that_wait_survive(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, **OWN)
    page.route("**/v1/chat/completions", lambda route: None, times=1)
    send(page, "One", max_tokens=3)
    for text in ("Two", "Three", "Four"):
        send(page, text)
    page.fill("#prompt", "Not sent")
    other = page.context.new_page()
    wait_for_kept(page)
    other.goto(page.url)
    waiting = "shown.queue.map((each) => each.text).join()"
    wait_for(other, f"server.model && {waiting} === 'Two,Three,Four'")
    page.reload()
    page.get_by_text("Queued. Send asks it.").wait_for()
    assert page.evaluate(waiting) == "Two,Three,Four"
    assert page.input_value("#prompt") == "Not sent"
    # No question is asked twice, and another tab's removal counts.
    other.get_by_role("button", name="Remove Three").click()
    wait_for(page, f"{waiting} === 'Two,Four'")
    bodies = find_bodies(page)
    page.fill("#prompt", "")
    page.evaluate("() => { noteOtherTab = () => {}; }")
    other.get_by_role("button", name="Remove Two").click()
    wait_for_kept(other)
    assert page.evaluate(waiting) == "Two,Four"
    page.press("#prompt", "Enter")
    page.locator(".message.user:has-text('Four')").wait_for()
    wait_for_answer(page)
    assert [each["messages"][-1]["content"] for each in bodies] == ["Four"]
    wait_for(other, f"{waiting} === ''")
    # They go, and come back, with their conversation.
    page.route("**/v1/chat/completions", lambda route: None, times=1)
    for text in ("Five", "Six"):
        send(page, text)
    page.click("#to-list")
    entry = page.wait_for_selector("#conversations li")
    page.click("#conversations summary")
    # An answer that grows leaves the list as it is.
    page.evaluate("() => keep(shown, [])")
    wait_for_kept(page)
    page.wait_for_selector("#conversations >> text=an answer is being written")
    assert entry.evaluate("node => node.isConnected")
    page.click("#conversations >> text=Delete")
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("It is back.").wait_for()
    page.click("#conversations a")
    wait_for(page, f"{waiting} === 'Six'")


def test_a_button_leads_to_the_end(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, **OWN)
    ask(page, "line\n" * 60)
    page.wait_for_selector("#to-end", state="hidden")
    page.evaluate("log.scrollTop = 0")
    page.click("#to-end")
    page.wait_for_selector("#to-end", state="hidden")
    assert page.evaluate("isAtEnd(1)")
    # What takes room from the log does not hide its end.
    page.evaluate("() => { log.scrollTop -= 1; showHint('Three lines. '.repeat(30)); }")
    wait_for(page, "isAtEnd(1) && byId('to-end').hidden")
    # Neither does an image that comes later,
    page.evaluate("""() => {
            const canvas = make("canvas", {width: 300, height: 300});
            log.append(make("img", {src: canvas.toDataURL(), alt: ""}));
        }""")
    wait_for(page, "log.lastElementChild.complete && isAtEnd(1)")
    # or messages of a long conversation, which are laid out when they are near.
    page.evaluate("""() => {
            const long = new Conversation();
            for (let parent = "", i = 0; i < 300; i++) {
                const text = "A line.\\n\\n".repeat(i % 20);
                parent = long.add({role: i % 2 ? "assistant" : "user", parent, text}).id;
            }
            show(long);
        }""")
    node = page.locator(".message").first
    assert node.evaluate("node => getComputedStyle(node).contentVisibility") == "auto"
    for place in ("0", "log.scrollHeight / 2"):
        page.evaluate(f"log.scrollTop = {place}")
        page.click("#to-end")
        wait_for(page, "isAtEnd(1) && byId('to-end').hidden")
        assert page.locator(".message").last.evaluate(
            "node => node.getBoundingClientRect().bottom <= innerHeight"
        )


def test_a_server_that_is_gone_is_noticed_and_awaited(
    server: FakeServer, open_page: OpenPage
) -> None:
    page = open_page(server.url, viewport={"width": 500, "height": 700})
    ask(page, "Before")
    page.clock.install()
    page.reload()
    wait_for(page, "server.model && shown.messages.size")
    page.context.set_offline(True)
    # The chat of a narrow page asks nothing else. Somebody may set the clock.
    page.clock.set_system_time(0)
    page.clock.run_for(25_000)
    page.wait_for_selector("text=The server has not answered since")
    assert (
        float(page.evaluate("getComputedStyle(document.querySelector('main')).opacity"))
        < 1
    )
    since = page.inner_text("#banner")
    # Nothing is asked that would be refused, and no message is marked.
    page.evaluate("document.querySelector('.assistant [data-act=again]').click()")
    assert page.inner_text("#hint") == "The server does not answer now."
    assert page.evaluate("shown.messages.size") == 2
    send(page, "Hello")
    assert "Your text stays here" in page.inner_text("#hint")
    assert page.input_value("#prompt") == "Hello"
    page.clock.run_for(3_000)
    assert page.inner_text("#banner") == since
    page.context.set_offline(False)

    def is_back() -> bool:
        page.clock.run_for(1_500)
        return bool(page.is_hidden("#banner"))

    wait_until(is_back)
    assert (
        page.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "1"
    )
    assert page.inner_text("#spoken") == "The server is back."
    assert page.is_hidden("#hint")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.user:has-text('Hello')")
    page.keyboard.press("Escape")
