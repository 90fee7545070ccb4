"""The door for models that pool: texts, ids, conversations and pairs to inputs.

As Renderer does it for models that write: what takes time with the length of a text runs
in a renderer worker, a chat template under a clock, in a worker or in a process.
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
from ..chat_renderer import ChatRenderer, ChatSteps, Messages
from ..text.chat import Conversation
from ..text.template import ChatOptions, ChatTemplate
from ..text.tokenizer import TokenizeOptions
from ..workers.jobs import UNKNOWN_SIZE, cut_jobs
from ..workers.threads import RendererWorkers, expect_seconds
from ..workers.waiting_room import open_waiting_room
from .rendering import NameParam, PoolingTexts, ReadyText, RenderedChat
from .texts import ChatInput, TextInput, TextOptions

T = TypeVar("T")

# Tokenized on the loop: 50 us, and to wake a thread up and be woken by it takes longer.
_FEW_CHARACTERS = 512

_CHAT_TOKENS = TokenizeOptions(add_special_tokens=False)


class PoolingRenderer:
    """Turns texts into what a pooling model reads at once.

    Attributes:
      room: where requests are while they are rendered; callers enter them.
      workers: where the calls run.
      chats: renders conversations by the chat template.
      images: None, because no such model sees any.
    """

    def __init__(
        self, texts: PoolingTexts, template: ChatTemplate, config: RenderConfig
    ) -> None:
        self.room = open_waiting_room(config)
        self.workers = RendererWorkers(config.renderer_num_workers)
        self.chats = ChatRenderer(template, self.workers, config)
        self.images = None
        self._texts = texts

    @property
    def is_stuck(self) -> bool:
        """Whether templates are refused, because too many do not end."""
        return self.workers.is_stuck

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """Names of the prompts that may be asked for."""
        return self._texts.prompt_names

    def cut_batches(self, texts: Sequence[TextInput]) -> list[range]:
        """Divide texts into jobs; long texts are read only as far as they count."""
        return cut_jobs(list(map(_estimate_size, texts)))

    async def render_texts(
        self, texts: Sequence[TextInput], options: TextOptions, name: NameParam
    ) -> list[tuple[PoolingInput, ...]]:
        """Make the inputs of a job's texts: one each, or several of one that is chunked.

        Args:
          name: gives the request's field of each text, for errors.

        Raises:
          ContextLengthExceeded: one is longer than it may be.
          InvalidParameter: one is empty or no text, or the options do not fit.
          NotSupported: conversations with more than text; chunks, by such a model.
          RendererStuck: too many templates do not end.
        """
        ready = await self._render_chats(texts)
        work = partial(self._texts.render, ready, options, name)
        if _is_little(texts):
            return work()
        seconds = expect_seconds(sum(map(_estimate_size, texts)))
        return await self.workers.run(work, expected_seconds=seconds)

    async def render_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        options: TextOptions,
        name: NameParam,
    ) -> list[PoolingInput]:
        """Make the inputs of pairs, for cross-encoders.

        Raises:
          ContextLengthExceeded, InvalidParameter, NotSupported: as render_texts.
        """
        return await self.workers.run(
            partial(self._texts.render_pairs, pairs, options, name),
            expected_seconds=expect_seconds(
                sum(len(query) + len(document) for query, document in pairs)
            ),
        )

    async def render_text(
        self,
        text: str,
        options: TokenizeOptions = TokenizeOptions(),
        *,
        param: str = "prompt",
    ) -> Prompt:
        """Tokenize a text alone, to tell its tokens.

        Raises:
          ContextLengthExceeded: it is longer than the model.
          InvalidParameter: it gives no tokens, or is no Unicode text.
        """
        return await self.workers.run(
            partial(self._tokenize, text, options, param),
            expected_seconds=expect_seconds(len(text)),
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

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        param: str = "tokens",
    ) -> str:
        """The text of some ids, as the tokenizer decodes it.

        Raises:
          InvalidParameter: an id is not the tokenizer's.
        """
        return await self.workers.run(
            partial(self._decode, token_ids, skip_special_tokens, param),
            expected_seconds=expect_seconds(len(token_ids)),
        )

    def token_text(self, token_id: int) -> str:
        """The token, as the vocabulary spells it."""
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
            # What is left of a word says nothing that could be told.
            text=text if is_whole else None,
            cache_salt=options.cache_salt,
        )

    def _decode(
        self, token_ids: Sequence[int], skip_special_tokens: bool, param: str
    ) -> str:
        tokenizer = self._texts.tokenizer
        tokenizer.read_ids(token_ids, param)
        return tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


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
    """Whether texts take less time than a thread; of conversations nobody knows."""
    sizes = (math.inf if isinstance(text, ChatInput) else len(text) for text in texts)
    return sum(sizes) <= _FEW_CHARACTERS


def _estimate_size(text: TextInput) -> int:
    if isinstance(text, str):
        return len(text)
    # Ids take no time, and what a template makes of a conversation nobody knows.
    return 0 if isinstance(text, tuple) else UNKNOWN_SIZE
