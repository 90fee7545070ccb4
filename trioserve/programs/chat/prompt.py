"""The prompt, with prompt_toolkit.

Its loop is asyncio's, and ours is trio's. So it runs in a thread, where it handles no signals:
Ctrl-C reaches it as a key, and it looks twice a second whether the window has another size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import sys
import termios
from typing import Any, Final

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
import trio

_PROMPT: Final = FormattedText([("bold", "> ")])
_CONTINUATION: Final = FormattedText([("", "  ")])

_TAKES_PATH: Final = ("/image ", "/load ", "/save ")


class Interrupted(Exception):
    """Raised when the user presses Ctrl-C at the prompt."""


class Prompt:
    """Asks the user for texts.

    Args:
      words: completed with the tabulator at the beginning of a line.
    """

    def __init__(self, history: History, words: Sequence[str]) -> None:
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            history=history,
            completer=_SlashCompleter(words),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            # No lines are kept free below the prompt.
            reserve_space_for_menu=0,
            key_bindings=_bind_keys(),
            prompt_continuation=_CONTINUATION,
            enable_suspend=True,
        )
        self._is_answered = False
        self._is_cancelled = False
        self._asking = trio.CapacityLimiter(1)

    async def ask(self) -> str:
        """Return the user's line.

        Raises:
          EOFError: Ctrl-D, or the terminal was closed.
          Interrupted: Ctrl-C.
        """
        async with trio.open_nursery() as nursery:
            self._is_answered = False
            nursery.start_soon(self._end_when_cancelled)
            answer = await trio.to_thread.run_sync(self._ask, limiter=self._asking)
            self._is_answered = True
            nursery.cancel_scope.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask(self) -> str | Exception:
        try:
            return self._session.prompt(
                pre_run=self._check_cancelled,
                handle_sigint=False,
                set_exception_handler=False,
            )
        except KeyboardInterrupt:
            return Interrupted()
        except EOFError as error:
            return error
        except OSError as error:
            # A terminal that was closed while it was written to.
            return EOFError(str(error))

    async def _end_when_cancelled(self) -> None:
        """End the prompt when the task is cancelled: a thread cannot be."""
        try:
            await trio.sleep_forever()
        finally:
            # The nursery is cancelled behind an answer, too.
            self._is_cancelled = not self._is_answered
            if (loop := self._session.app.loop) is not None and self._is_cancelled:
                # The loop may end meanwhile.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._check_cancelled)

    def _check_cancelled(self) -> None:
        app = self._session.app
        if self._is_cancelled and app.future is not None and not app.future.done():
            app.exit(exception=EOFError())


class _SlashCompleter(Completer):
    """Completes commands, and the paths behind some of them."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = sorted(words)
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Any:
        text = document.text_before_cursor
        for name in _TAKES_PATH:
            if text.startswith(name):
                path = Document(text.removeprefix(name))
                yield from self._paths.get_completions(path, complete_event)
                return
        if text.startswith("/") and " " not in text:
            for word in self._words:
                if word.startswith(text):
                    yield Completion(word, start_position=-len(text))


def _bind_keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @Condition
    def ends_with_backslash() -> bool:
        return get_app().current_buffer.document.text_before_cursor.endswith("\\")

    @keys.add("enter", filter=ends_with_backslash)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor()
        event.current_buffer.insert_text("\n")

    return keys


def open_history(*, is_kept: bool) -> tuple[History, str]:
    """Return the history, and the reason why it is not kept; "" if it is, or need not be.

    Only the user can read its file.
    """
    if not is_kept:
        return InMemoryHistory(), ""
    path = user_state_path("trioserve") / "chat_history"
    try:
        _create_private(path)
    except OSError as error:
        return InMemoryHistory(), f"cannot write {path}: {error.strerror}"
    return FileHistory(path), ""


def _create_private(path: Path) -> None:
    """Create the file with the mode 0600, or give a file this mode.

    Raises:
      OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


# The places of two kinds of modes in a terminal's attributes.
_INPUT, _LOCAL = 0, 3


@contextmanager
def keep_quiet() -> Iterator[None]:
    """Hide typed keys in the block; Ctrl-C and Ctrl-Z still send their signals.

    A prompt inside the block has modes of its own, and returns to these.
    """
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        # The terminal was closed.
        yield
        return
    quiet = [*before]
    # Keys stay as they were pressed: the prompt tells Enter from Ctrl-J. And Ctrl-S does
    # not stop the output, for which the whole program would wait.
    quiet[_INPUT] &= ~(termios.ICRNL | termios.IXON)
    quiet[_LOCAL] &= ~(termios.ECHO | termios.ICANON)
    # Ctrl-C leaves earlier keys.
    quiet[_LOCAL] |= termios.NOFLSH
    _set_modes(descriptor, quiet)
    try:
        yield
    finally:
        _set_modes(descriptor, before)


def _set_modes(descriptor: int, attributes: list[object]) -> None:
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)  # type: ignore[arg-type]
    except termios.error:
        pass
