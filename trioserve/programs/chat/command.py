"""The way in: a pipe or a terminal, an engine or a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
import logging
import sys

import trio

from ...errors import EngineDied, StartupError, find_first, make_line, needing_extra
from ...startup.log_lines import set_up_logging
from .answers import Answerer, AnswerFailed
from .config import ChatConfig, Source
from .loading import show_loading
from .pipe import answer_once, begin_conversation, read_question


def run_chat(config: ChatConfig, source: Source) -> int:
    """Talk, and return the exit code.

    Raises:
      StartupError: the user can correct something.
    """
    # Of our own log, errors alone; libraries are as quiet.
    set_up_logging(logging.ERROR)
    if not config.talk.prompt and sys.stdin.isatty():
        return _run_terminal(config, source)
    conversation = begin_conversation(config)
    question = read_question(config.talk.prompt)

    async def answer() -> int:
        with ExitStack() as loading:
            if source.engine is not None:
                loading.enter_context(show_loading())
            async with open_source(source) as model:
                loading.close()
                return await answer_once(model, conversation, question, config)

    return run(answer)


def open_source(source: Source) -> AbstractAsyncContextManager[Answerer]:
    """Open the source of answers; see open_embedded and open_remote."""
    # Here, because each imports libraries that the other does not need.
    if source.engine is not None:
        from .embedded import open_embedded

        return open_embedded(source.engine)
    from .remote import open_remote

    return open_remote(source.remote, source.model)


def run(main: Callable[[], Awaitable[int]]) -> int:
    """Run the main function; returns the exit code.

    Raises:
      StartupError
    """
    failure: Exception | None = None
    code = 0
    try:
        code = trio.run(main)
    except* EngineDied as errors:
        failure = find_first(errors)
    except* (AnswerFailed, StartupError) as errors:
        failure = failure or find_first(errors)
    if isinstance(failure, StartupError):
        raise failure
    if isinstance(failure, EngineDied):
        return tell(f"the engine failed: {failure.__cause__}", 3)
    if failure is not None:
        return tell(str(failure), 1)
    return code


def tell(message: str, code: int) -> int:
    """Write an error, which may quote a server, and return the exit code."""
    sys.stderr.write(f"trioserve: {make_line(message)}\n")
    return code


def _run_terminal(config: ChatConfig, source: Source) -> int:
    if not sys.stdout.isatty():
        raise StartupError(
            "chat: standard output is not a terminal; give the question by --prompt, or "
            "through a pipe"
        )
    # A missing package is reported before a model is loaded.
    with needing_extra("chat", "trioserve chat in a terminal"):
        from .terminal import hold_conversation
    conversation = begin_conversation(config)

    async def converse() -> int:
        loads = source.engine is not None
        opening = open_source(source)
        return await hold_conversation(opening, conversation, config, loads=loads)

    return run(converse)
