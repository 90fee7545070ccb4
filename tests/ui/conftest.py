"""A headless Chromium, and servers for it in a thread.

The tests of this folder need the package playwright (extra ui-test) and a Chromium of the
system; docs/architecture.rst has the commands. They are skipped where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
import queue
import shutil
import threading
import time
from typing import Any, TypeVar

import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.trio.run
import pytest
import trio

from trioserve.testing.server import FakeServer, open_fake_server

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

T = TypeVar("T")

EXTRA = "needs the extra ui-test"

# The machine may be busy.
SECONDS = 60

# A browser tells of every answer that is an error, besides what scripts and policies report.
FAILED_LOAD = "Failed to load resource"


# Open while tests of this folder run, and no longer: Playwright's event loop runs in this
# thread until it is left, and tests of other folders call asyncio.run.
_OPEN = ExitStack()


@pytest.fixture(scope="session")
def browser() -> Any:
    playwright = pytest.importorskip("playwright.sync_api", reason=EXTRA)
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    running = _OPEN.enter_context(playwright.sync_playwright())
    # A container has no user namespaces for Chromium's sandbox.
    browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    _OPEN.callback(browser.close)
    return browser


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the browser behind the last test of this folder."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _OPEN.close()


def wait_for(page: Any, expression: str) -> None:
    """Wait until an expression of the page is true.

    Playwright's own wait_for_function evaluates texts in the page, which its policy forbids.
    """
    wait_until(lambda: bool(page.evaluate(f"Boolean({expression})")))


def open_panel(page: Any) -> None:
    """Unfold the live view beside the chat."""
    if page.is_hidden("#live"):
        page.click("#show-panel")
    page.wait_for_selector("#live", state="visible")


def wait_for_look(page: Any) -> None:
    """Wait until the page has asked for everything once more."""
    page.evaluate("meter.seen = meter.at")
    wait_for(page, "meter.at > meter.seen")


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


@pytest.fixture
def open_page(browser: Any, usual: Any) -> Iterator[Callable[..., Any]]:
    """Open the page of a server; the test fails if a policy was violated or a script failed.

    It fails, too, if the page asks any other server. The page's `failed_loads` are the answers
    that were errors.
    """
    with watch_pages(browser, usual) as open_page:
        yield open_page


@pytest.fixture(scope="session")
def usual(browser: Any) -> Any:
    """The context of pages without options. A context of its own costs a page a process."""
    return browser.new_context()


@contextmanager
def watch_pages(browser: Any, usual: Any) -> Iterator[Callable[..., Any]]:
    with ExitStack() as opened:
        wrong: list[str] = []

        def open_page(url: str, *, waits: bool = True, **options: Any) -> Any:
            context = usual
            if options:
                context = browser.new_context(**options)
                opened.callback(context.close)
            context.set_default_timeout(1000 * SECONDS)
            page = context.new_page()
            opened.callback(page.close)
            # Pages of one server share it, and each test begins without it.
            opened.callback(lambda: page.evaluate("localStorage.clear()"))
            page.failed_loads = []

            def note(message: Any) -> None:
                failed = message.text.startswith(FAILED_LOAD)
                (page.failed_loads if failed else wrong).append(message.text)

            def check(request: Any) -> None:
                if not request.url.startswith((url, "data:")):
                    wrong.append(f"{request.url} is another address")

            page.on("request", check)
            page.on("console", note)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(url)
            if waits:
                wait_for(page, "server.model")
            return page

        yield open_page
        assert wrong == []


@contextmanager
def run_server(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a server in a thread, because Playwright has an event loop in this one."""
    started: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def serve() -> None:
        done = trio.Event()
        async with server as running:
            token = trio.lowlevel.current_trio_token()
            started.put((running, lambda: token.run_sync_soon(done.set)))
            await done.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            started.put((error, None))
            raise

    thread = threading.Thread(target=run)
    thread.start()
    running, stop = started.get(timeout=SECONDS)
    if isinstance(running, BaseException):
        raise running
    try:
        yield running
    finally:
        stop()
        thread.join(SECONDS)
        assert not thread.is_alive(), "the server ends"


@pytest.fixture(scope="module")
def server(tokenizer_folder: Path) -> Iterator[FakeServer]:
    """A server that writes some thirty tokens a second."""
    with run_server(open_fake_server(tokenizer_folder, step_seconds=0.03)) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def restored_hypercorn() -> Iterator[None]:
    """Undo install_guard behind the tests: it replaces these classes of hypercorn."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in [
            (hypercorn.trio.run, "TCPServer"),
            (hypercorn.protocol, "H11Protocol"),
            (hypercorn.protocol, "H2Protocol"),
            (hypercorn.protocol.h2, "StreamBuffer"),
        ]:
            patch.setattr(module, name, getattr(module, name))
        yield
