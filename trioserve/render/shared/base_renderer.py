"""The parts that the renderers of all models share: workers, chats, and ids to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ...config import RenderConfig
from ..text.template import ChatTemplate
from ..text.tokenizer import IdDecoder
from ..workers.threads import CHARACTERS_PER_SECOND, RendererWorkers
from ..workers.turns import Workplace
from ..workers.waiting_room import open_waiting_room
from .chat_renderer import ChatRenderer


class BaseRenderer:
    """The base of Renderer and PoolingRenderer.

    Args:
      workers: run the calls, in place of new threads.

    Attributes:
      room: bounds the requests that are rendered; callers enter it for each request.
      model_tokenizer: the tokenizer as the model's files describe it.
      workers: the threads that run the calls.
      chats: renders conversations by the chat template.
    """

    def __init__(
        self,
        decoder: IdDecoder,
        template: ChatTemplate,
        config: RenderConfig,
        workers: RendererWorkers | None = None,
    ) -> None:
        self.room = open_waiting_room(config)
        self.model_tokenizer = template.tokenizer
        self.workers = workers or RendererWorkers(config.renderer_num_workers)
        self.chats = ChatRenderer(template, self.workers, config)
        self._decoder = decoder

    @property
    def is_stuck(self) -> bool:
        """True if templates are refused, because too many do not end."""
        return self.workers.is_stuck

    def list_workers(self) -> Iterator[tuple[str, RendererWorkers]]:
        """Yield all threads, by groups with the name of one."""
        yield "renderer thread", self.workers

    def list_workplaces(self) -> Iterator[Workplace]:
        """Yield the places where requests are rendered."""
        for name, workers in self.list_workers():
            yield workers.describe_place(name)
        if self.chats.processes is not None:
            yield self.chats.processes.describe_place()

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        param: str = "tokens",
    ) -> str:
        """Return the text of token ids, as the tokenizer decodes it.

        Raises:
          InvalidParameter: the tokenizer does not have one of the ids.
        """
        return await self.workers.run(
            partial(self._decode, token_ids, skip_special_tokens, param),
            expected_seconds=len(token_ids) / CHARACTERS_PER_SECOND,
        )

    def _decode(
        self, token_ids: Sequence[int], skip_special_tokens: bool, param: str
    ) -> str:
        self._decoder.check_ids(token_ids, param)
        return self._decoder.decode(token_ids, skip_special_tokens=skip_special_tokens)
