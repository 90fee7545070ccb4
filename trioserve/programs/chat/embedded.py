"""Answers of an engine that is opened here, in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ...config import EngineConfig
from ...errors import EngineDied, StartupError, TrioserveError
from ...frontend import TextEngine, TextStream
from ...startup.open import open_served_engine
from .answers import Answerer, AnswerFailed, Message, Piece, is_open


class EmbeddedModel:
    """An Answerer over an engine."""

    def __init__(self, engine: TextEngine) -> None:
        self.name = engine.info.name
        self.takes_images: bool | None = engine.info.takes_images
        self._model = self._engine = engine

    async def list_models(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return [*self._model.list_names()]

    async def choose(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        engine = self._model.find(name)
        if engine is None:
            names = ", ".join(self._model.list_names())
            raise AnswerFailed(f"there is no {name!r}; there are {names}")
        self._engine, self.name = engine, engine.info.name

    @asynccontextmanager
    async def open_answer(
        self, messages: Sequence[Message], sampling: Mapping[str, object]
    ) -> AsyncIterator[AsyncIterator[Piece]]:
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in sampling.items()
        }
        try:
            async with self._engine.open_chat(
                messages, continues=is_open(messages), **options
            ) as stream:
                yield _PieceReader(stream)
        except EngineDied:
            # The engine's own block tells the cause, and the program ends.
            raise
        except TrioserveError as error:
            raise AnswerFailed(str(error)) from None


class _PieceReader:
    """The pieces of a TextStream."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _PieceReader:
        return self

    async def __anext__(self) -> Piece:
        delta = await self._stream.__anext__()
        return Piece(
            text=delta.text,
            reasoning=delta.reasoning,
            finish_reason=delta.finish_reason,
        )


@asynccontextmanager
async def open_embedded(config: EngineConfig) -> AsyncIterator[Answerer]:
    """Load a model. Its engine has a process of its own, so that keys never wait for it.

    Raises:
      StartupError: the model cannot be found or loaded, or does not write text.
      EngineDied: as open_engine.
    """
    # Not open_engine, because errors here are about flags, and not about keywords.
    async with open_served_engine(config, process=True) as engine:
        if not isinstance(engine, TextEngine):
            raise StartupError(
                f"{engine.info.name} embeds or classifies texts, and writes none; "
                "chat needs a model that does"
            )
        model = EmbeddedModel(engine)
        # Whoever names an adapter wants to talk to it.
        for name, _ in config.model.list_adapters()[:1]:
            await model.choose(name)
        yield model
