"""The conversation in the terminal.

    signals        Ctrl-C stops an answer; SIGTERM and SIGHUP end the program
      model        loaded here, or a server's
        prompt     in a thread
        answer     read by one task, and drawn by another

At the prompt, Ctrl-C is a key; see prompt.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
import signal
import sys

from rich.console import Console
import trio

from ...errors import make_line, make_safe
from .answer_view import AnswerView, PlainView, View
from .answers import Answerer, AnswerFailed, open_fitting_answer
from .config import MAX_TOKENS_IN_TERMINAL, ChatConfig
from .conversation import Conversation
from .live_lines import LiveLines
from .loading import show_loading
from .markup import Markup
from .pipe import AnswerWriter, check_images, explain_end
from .prompt import Interrupted, Prompt, keep_quiet, open_history
from .slash import SlashCommands


class Stops:
    """The signals of one conversation.

    Attributes:
      everything: cancelled by a signal that ends the program.
      answer: cancelled by Ctrl-C; None while there is no answer.
      exit_code: of the program.
    """

    def __init__(self, everything: trio.CancelScope) -> None:
        self.everything = everything
        self.answer: trio.CancelScope | None = None
        self.is_loading = True
        self.exit_code = 0

    async def watch(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for number in signals:
                self._stop(number)

    def _stop(self, number: int) -> None:
        if number != signal.SIGINT or self.is_loading:
            self.exit_code = 128 + number
            self.everything.cancel()
        elif self.answer is not None:
            self.answer.cancel()


async def hold_conversation(
    opening: AbstractAsyncContextManager[Answerer],
    conversation: Conversation,
    config: ChatConfig,
    *,
    loads: bool,
) -> int:
    """Talk until the user ends it; returns the exit code.

    Args:
      opening: opens the model.
      loads: that loads it.

    Raises: as open_embedded and open_remote, in groups.
    """
    async with trio.open_nursery() as nursery:
        stops = Stops(nursery.cancel_scope)
        await nursery.start(stops.watch)
        with keep_quiet(), ExitStack() as loading:
            if loads:
                loading.enter_context(show_loading())
            async with opening as model:
                loading.close()
                stops.is_loading = False
                check_images(model, conversation)
                await Talk(model, conversation, config, stops).run()
        nursery.cancel_scope.cancel()
    return stops.exit_code


class Talk:
    """Questions and answers.

    Args:
      stops: lets Ctrl-C stop an answer.
    """

    def __init__(
        self,
        model: Answerer,
        conversation: Conversation,
        config: ChatConfig,
        stops: Stops,
    ) -> None:
        self._model = model
        self._conversation = conversation
        self._talk = config.talk
        self._stops = stops
        self._console = Console(highlight=False)
        self._name = make_line(model.name)
        self._commands = SlashCommands(
            conversation,
            config.sampling,
            model=self._name,
            takes_images=model.takes_images,
        )

    async def run(self) -> None:
        """Talk until the user ends it."""
        history, trouble = open_history(is_kept=self._talk.history)
        prompt = Prompt(history, self._commands.names)
        self._say(f"{self._name}. /help lists the commands; Ctrl-D ends.")
        if trouble:
            self._say(f"what you type is not kept: {trouble}")
        while True:
            try:
                text = await prompt.ask()
            except EOFError:
                return
            except Interrupted:
                self._say("Ctrl-D or /exit ends the conversation.")
                continue
            if not await self._follow(text):
                return

    async def _follow(self, text: str) -> bool:
        """Follow the user's line; returns whether the conversation goes on."""
        if not text.strip():
            return True
        if text.startswith("/"):
            outcome = self._commands.run(text)
            self._say(outcome.text, is_error=outcome.is_error)
            if outcome.next == "model":
                await self._choose(outcome.model)
            if outcome.next != "answer":
                return outcome.next != "exit"
        else:
            self._conversation.ask(text.strip())
        await self._answer()
        return True

    async def _choose(self, name: str) -> None:
        """Let another model answer if one is named, and show all names."""
        with trio.CancelScope() as self._stops.answer:
            try:
                if name:
                    await self._model.choose(name)
                names = await self._model.list_models()
            except AnswerFailed as error:
                self._say(make_line(str(error)), is_error=True)
            else:
                self._commands.model = make_line(self._model.name)
                marks = {self._model.name: "*"}
                lines = [f"{marks.get(each, ' ')} {make_line(each)}" for each in names]
                self._say("\n".join(lines))
        self._stops.answer = None

    async def _answer(self) -> None:
        """Show the answer to the open question, and keep the part that came."""
        view = self._open_view()
        texts: list[str] = []
        failure = ""
        with trio.CancelScope() as self._stops.answer:
            try:
                failure = await self._read(view, texts)
            finally:
                view.finish()
        self._stops.answer = None
        answer = "".join(texts)
        self._conversation.answer(answer)
        if failure:
            self._say(failure, is_error=True)
            if not answer.strip():
                self._say("/regenerate asks again.")
        self._console.print()

    async def _read(self, view: View, texts: list[str]) -> str:
        """Read an answer while another task draws it.

        Args:
          texts: gets the pieces.

        Returns:
          the reason why it has broken off; empty if it has not.
        """
        failure = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_draw, view)
            try:
                async with open_fitting_answer(
                    self._model,
                    self._conversation.write(),
                    {
                        "max_tokens": MAX_TOKENS_IN_TERMINAL,
                        **self._commands.sampling.list_given(),
                    },
                ) as pieces:
                    async for piece in pieces:
                        view.feed(piece)
                        texts.append(piece.text)
                        if end := explain_end(piece.finish_reason):
                            failure = f"{end}; {_find_way_on(texts)}"
            except AnswerFailed as error:
                failure = _explain(error)
            nursery.cancel_scope.cancel()
        return failure

    def _open_view(self) -> View:
        shows_reasoning = self._talk.show_reasoning
        if self._console.is_dumb_terminal:
            return PlainView(AnswerWriter(sys.stdout), shows_reasoning=shows_reasoning)
        return AnswerView(
            LiveLines(sys.stdout, lambda: self._console.height),
            Markup(self._console),
            shows_reasoning=shows_reasoning,
            is_markdown=self._talk.markdown,
        )

    def _say(self, text: str, *, is_error: bool = False) -> None:
        """Tell the user something besides answers."""
        if text:
            style = "red" if is_error else "dim"
            self._console.print(make_safe(text), style=style, markup=False)


async def _draw(view: View) -> None:
    while True:
        view.draw()
        await trio.sleep(view.pause)


def _find_way_on(texts: Sequence[str]) -> str:
    """Name the command for an answer that ended early; its reasoning cannot go on."""
    if any(text.strip() for text in texts):
        return "/continue goes on"
    return "/set max_tokens allows more"


def _explain(error: AnswerFailed) -> str:
    if error.is_context_full:
        return (
            f"The conversation is too long for the model: {make_line(str(error))} "
            "/clear begins a new one, and /undo forgets the last question."
        )
    return make_line(str(error))
