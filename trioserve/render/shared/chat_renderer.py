"""Conversations to text: checked messages, then the chat template, in a bounded time.

Both renderers, of models that generate and of models that pool, render their
conversations here. A `ChatSteps` has their own steps before and after the template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from ...config import RenderConfig
from ...errors import InvalidParameter
from ..text.chat import ChatMessage, Conversation, count_characters, read_messages
from ..text.template import ChatOptions, ChatTemplate
from ..workers.processes import TemplateProcesses
from ..workers.threads import CHARACTERS_PER_SECOND, RendererWorkers, TookTooLong

T = TypeVar("T")
Messages = Sequence[ChatMessage | Mapping[str, object]]


class ChatSteps(Generic[T]):
    """A renderer's own steps for one conversation, around the chat template."""

    def check(self, conversation: Conversation) -> None:
        """Refuse a conversation before its template runs. Called in a worker thread."""

    async def load_media(self, conversation: Conversation) -> None:
        """Prepare images and tensors. Called only for a conversation that has some."""

    def finish(self, text: str) -> T:
        """Return the result for the rendered text. Called in a worker thread."""
        raise NotImplementedError


class ChatRenderer:
    """Renders conversations by a model's chat template.

    A template is a program over a client's messages and may never end. So it runs under
    a time limit: in a worker thread, or in a process while `processes` is set.

    Attributes:
      processes: where templates run in place of threads; None for threads.
    """

    def __init__(
        self, template: ChatTemplate, workers: RendererWorkers, config: RenderConfig
    ) -> None:
        self.processes: TemplateProcesses | None = None
        self._template = template
        self._workers = workers
        self._timeout = config.template_timeout

    async def render(
        self, messages: Messages, chat: ChatOptions, steps: ChatSteps[T]
    ) -> T:
        """Render one conversation, and return the result of its last step.

        Raises:
          InvalidParameter: the messages are wrong, the template refuses them, or it
            takes longer than its time limit.
          NotSupported: a part of a message is of an unknown kind.
          RendererStuck: too many templates exceeded the limit and still run.
          Also raises the errors of the steps.
        """
        seconds = count_characters(messages) / CHARACTERS_PER_SECOND
        try:
            if self.processes is not None:
                return await self._render_in_process(
                    self.processes, messages, chat, steps, seconds
                )
            # A conversation of text alone needs one thread call for all its steps.
            begun = await self._workers.run_limited(
                partial(self._begin, messages, chat, steps),
                self._timeout,
                expected_seconds=seconds,
            )
            if not isinstance(begun, Conversation):
                return begun
            await steps.load_media(begun)
            return await self._workers.run_limited(
                partial(self._finish, begun, chat, steps),
                self._timeout,
                expected_seconds=seconds,
            )
        except TookTooLong:
            raise InvalidParameter(
                "messages",
                f"the chat template takes longer than {self._timeout:g} s for them",
            ) from None

    async def _render_in_process(
        self,
        processes: TemplateProcesses,
        messages: Messages,
        chat: ChatOptions,
        steps: ChatSteps[T],
        seconds: float,
    ) -> T:
        conversation = await self._workers.run(
            partial(self._read, messages, chat, steps), expected_seconds=seconds
        )
        if conversation.has_media:
            await steps.load_media(conversation)
        call = self._template.prepare(conversation.messages, chat)
        text = await processes.render(call, self._timeout, expected_seconds=seconds)
        return await self._workers.run(
            partial(steps.finish, text),
            expected_seconds=len(text) / CHARACTERS_PER_SECOND,
        )

    # The rest runs in worker threads.

    def _begin(
        self, messages: Messages, chat: ChatOptions, steps: ChatSteps[T]
    ) -> T | Conversation:
        """Render a conversation of text alone; return others, whose media must load."""
        conversation = self._read(messages, chat, steps)
        if conversation.has_media:
            return conversation
        return self._finish(conversation, chat, steps)

    def _read(
        self, messages: Messages, chat: ChatOptions, steps: ChatSteps[T]
    ) -> Conversation:
        conversation = read_messages(messages, self._template.find_form(chat))
        steps.check(conversation)
        return conversation

    def _finish(
        self, conversation: Conversation, chat: ChatOptions, steps: ChatSteps[T]
    ) -> T:
        call = self._template.prepare(conversation.messages, chat)
        return steps.finish(call.render())
