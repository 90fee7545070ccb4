"""The ways in which requests reach a server: over HTTP, or in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from ...config import RemoteConfig
from ...errors import StartupError
from ..http.client import FAILURES, Connection, HttpAnswer, find_opener
from ..http.reasons import explain_no_answer


class WholeAnswer(Protocol):
    """A programs.http.client.HttpAnswer, or the answer of a server in memory."""

    @property
    def status(self) -> int: ...

    @property
    def fields(self) -> tuple[tuple[bytes, bytes], ...]: ...

    @property
    def body(self) -> bytes: ...


class Asker(Protocol):
    """Sends one request, and returns the whole answer."""

    async def post(self, target: str, body: bytes) -> WholeAnswer:
        """Raises one of FAILURES if there is no answer."""


class ServerGone(Exception):
    """Raised when a server has stopped to answer, so that the batch cannot go on."""


class RemoteAsker:
    """Asks a server over HTTP. Connections are kept, and taken again.

    Raises:
      InvalidConfig: the file with the key or the certificates cannot be read.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self._open = find_opener(config)
        self._idle: list[Connection] = []

    @property
    def where(self) -> str:
        return self._config.where

    async def post(self, target: str, body: bytes) -> HttpAnswer:
        return await self._ask("POST", target, body)

    async def check(self) -> None:
        """Ask for the list of models, to learn whether the server can be asked at all.

        Raises:
          ServerGone: no server answers.
          StartupError: it does not know the key.
        """
        try:
            answer = await self._ask("GET", "/v1/models", b"")
        except FAILURES as error:
            raise ServerGone(explain_no_answer(self.where, error)) from None
        # Other statuses come from servers that do not list their models.
        if answer.status == 401:
            raise StartupError(self._config.explain_unknown_key())

    async def _ask(self, method: str, target: str, body: bytes) -> HttpAnswer:
        connection = self._idle.pop() if self._idle else self._open()
        is_whole = False
        try:
            answer = await connection.ask(method, target, body)
            is_whole = True
        finally:
            if is_whole:
                self._idle.append(connection)
            else:
                await connection.aclose()
        return answer

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()


@asynccontextmanager
async def open_remote(config: RemoteConfig) -> AsyncIterator[RemoteAsker]:
    """Check that a server can be asked, and close the connections to it at the end.

    Raises:
      StartupError: no server answers, or not to this key.
    """
    asker = RemoteAsker(config)
    try:
        try:
            await asker.check()
        except ServerGone as error:
            raise StartupError(str(error)) from None
        yield asker
    finally:
        await asker.aclose()
