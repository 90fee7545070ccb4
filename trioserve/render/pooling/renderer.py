"""The renderer of models that pool: texts, ids, chats and pairs to model inputs.

As in the Renderer of models that generate, calls whose time grows with the text run in
a renderer worker, and a chat template runs under a time limit (chat_renderer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
import math
from typing import TypeVar

from ...config import RenderConfig
from ...errors import NotSupported
from ...types.pooling import PoolingInput
from ...types.prompt import Prompt
from ..shared.base_renderer import BaseRenderer
from ..shared.chat_renderer import ChatSteps, Messages
from ..text.chat import Conversation
from ..text.template import ChatOptions, ChatTemplate
from ..text.tokenizer import TokenizeOptions
from ..workers.threads import (
    CHARACTERS_PER_SECOND,
    UNKNOWN_SIZE,
    RendererWorkers,
    cut_jobs,
)
from .rendering import NameParam, PoolingTexts, ReadyText, RenderedChat
from .texts import ChatInput, TextInput, TextOptions

T = TypeVar("T")

# Texts this short are tokenized on the event loop: that takes 50 us, and the switch to
# a thread and back takes longer.
_FEW_CHARACTERS = 512

_CHAT_TOKENS = TokenizeOptions(add_special_tokens=False)


class PoolingRenderer(BaseRenderer):
    """Turns texts into the inputs of a pooling model.

    Args:
      workers: see BaseRenderer.

    Attributes:
      images: None, because no such model sees images.
    """

    def __init__(
        self,
        texts: PoolingTexts,
        template: ChatTemplate,
        config: RenderConfig,
        workers: RendererWorkers | None = None,
    ) -> None:
        super().__init__(texts.tokenizer, template, config, workers)
        self.images = None
        self._texts = texts

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """The names of the model's prompts."""
        return self._texts.prompt_names

    def cut_batches(self, texts: Sequence[TextInput]) -> list[range]:
        """Divide texts into jobs."""
        return cut_jobs(list(map(_estimate_size, texts)))

    async def render_texts(
        self, texts: Sequence[TextInput], options: TextOptions, name: NameParam
    ) -> list[tuple[PoolingInput, ...]]:
        """Make the inputs of a job's texts: one each, or one for each chunk of a text.

        Args:
          name: returns the field of a text in the request, for errors.

        Raises:
          ContextLengthExceeded: a text is too long.
          InvalidParameter: a text is empty or not Unicode, or an option is wrong.
          NotSupported: a conversation has more than text, or the model cannot average
            chunks.
          RendererStuck: too many templates exceeded their time limit and still run.
        """
        ready = await self._render_chats(texts)
        work = partial(self._texts.render, ready, options, name)
        if _is_little(texts):
            return work()
        seconds = sum(map(_estimate_size, texts)) / CHARACTERS_PER_SECOND
        return await self.workers.run(work, expected_seconds=seconds)

    async def render_pairs(
        self, pairs: Sequence[tuple[str, str]], options: TextOptions, name: NameParam
    ) -> list[PoolingInput]:
        """Make the inputs of pairs, for cross-encoders.

        Raises:
          ContextLengthExceeded, InvalidParameter, NotSupported: as render_texts.
        """
        return await self.workers.run(
            partial(self._texts.render_pairs, pairs, options, name),
            expected_seconds=sum(
                len(query) + len(document) for query, document in pairs
            )
            / CHARACTERS_PER_SECOND,
        )

    async def render_text(
        self,
        text: str,
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> Prompt:
        """Tokenize a text for a client that asks for its tokens.

        Raises:
          ContextLengthExceeded: it is longer than the model.
          InvalidParameter: it has no tokens, or is not Unicode text.
        """
        return await self.workers.run(
            partial(self._tokenize, text, options, param),
            expected_seconds=len(text) / CHARACTERS_PER_SECOND,
        )

    async def render_chat(
        self,
        messages: Messages,
        chat: ChatOptions = ChatOptions(),
        options: TokenizeOptions = _CHAT_TOKENS,
    ) -> Prompt:
        """Render a conversation by the chat template and tokenize it.

        Raises:
          ContextLengthExceeded, InvalidParameter, NotSupported, RendererStuck: as
            render_texts.
        """
        finish = partial(self._tokenize, options=options, param="messages")
        return await self.chats.render(messages, chat, _TextSteps(finish))

    def token_text(self, token_id: int) -> str:
        """Return a token's name in the vocabulary."""
        return self._texts.tokenizer.token_text(token_id)

    async def _render_chats(self, texts: Sequence[TextInput]) -> list[ReadyText]:
        ready: list[ReadyText] = []
        for text in texts:
            if isinstance(text, ChatInput):
                steps = _TextSteps(lambda rendered: RenderedChat(text=rendered))
                rendered = await self.chats.render(text.messages, text.chat, steps)
                ready.append(rendered)
            else:
                ready.append(text)
        return ready

    # The rest runs in worker threads.

    def _tokenize(self, text: str, options: TokenizeOptions, param: str) -> Prompt:
        token_ids, is_whole = self._texts.tokenize(
            text,
            add_special_tokens=options.add_special_tokens,
            truncate_to=options.truncate_to,
            side=options.truncation_side,
            param=param,
        )
        return Prompt(
            token_ids=tuple(token_ids),
            # The text of the kept tokens alone is not known.
            text=text if is_whole else None,
            cache_salt=options.cache_salt,
        )


class _TextSteps(ChatSteps[T]):
    """The steps of a conversation that consists of texts alone.

    Args:
      finish: makes the result of the rendered text.
    """

    def __init__(self, finish: Callable[[str], T]) -> None:
        self._finish = finish

    def check(self, conversation: Conversation) -> None:
        # The template's form refused images already.
        for part in conversation.embeds:
            raise NotSupported(part.param, "only texts are pooled")

    def finish(self, text: str) -> T:
        return self._finish(text)


def _is_little(texts: Sequence[TextInput]) -> bool:
    """Return whether texts take less time than the switch to a thread."""
    sizes = (math.inf if isinstance(text, ChatInput) else len(text) for text in texts)
    return sum(sizes) <= _FEW_CHARACTERS


def _estimate_size(text: TextInput) -> int:
    if isinstance(text, str):
        return len(text)
    # Ids take no time. The length of a rendered conversation is not known yet.
    return 0 if isinstance(text, tuple) else UNKNOWN_SIZE
