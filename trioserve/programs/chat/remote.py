"""Answers of a server that speaks OpenAI's API."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
import json
import secrets
import ssl
from typing import Final, NoReturn
from urllib.parse import urlsplit

import httpcore2
import msgspec

from ...config import RemoteConfig, find_base_path
from ...config.remote import find_netloc
from ..http.events import EventReader
from ..http.reasons import (
    explain_connection,
    explain_no_answer,
    find_cause,
    read_reason,
)
from .answers import Answerer, AnswerFailed, Message, Piece, is_open, read_pieces
from .proxy import Route, find_route

_CONNECT_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 30.0

# The reason in an answer that refuses.
_MAX_REFUSAL: Final = 2**16

# A thousand models and more.
_MAX_LIST: Final = 2**24

_CONNECTION_ERRORS: Final = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)

# More names would fill the screen.
_MAX_NAMES: Final = 8


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class RemoteModel:
    """An Answerer over HTTP.

    Args:
      pool: opens connections.
      base: the address, up to /v1.
      key: None sends none.
      route: of the pool.

    Attributes:
      where: the server, for messages.
    """

    def __init__(
        self,
        pool: httpcore2.AsyncConnectionPool,
        base: str,
        where: str,
        key: str | None,
        route: Route,
    ) -> None:
        self.name = ""
        self.takes_images: bool | None = None
        self.where = where
        self._pool = pool
        self._base = base
        self._key = key
        self._route = route
        # A proxy with several servers sends requests of one conversation to the same one,
        # whose cache has their beginning (deploy/nginx.conf).
        self._session = f"chat-{secrets.token_hex(8)}"

    async def choose(self, name: str | None) -> None:
        """Choose a model of the server.

        Args:
          name: None takes the first.

        Raises:
          AnswerFailed: there is no such model, or the server cannot be asked.
        """
        names = await self.list_models()
        # A proxy may offer openai/* and the like.
        is_open = any("*" in each for each in names)
        if name is not None and name not in names and names and not is_open:
            raise AnswerFailed(
                f"{self.where} has no model {name!r}; it has {_enumerate(names)}"
            )
        if name is None and not names:
            raise AnswerFailed(f"{self.where} lists no model; name one by --model")
        self.name = name or names[0]

    async def list_models(self) -> list[str]:
        with self.explaining():
            async with self._send("GET", "models", seconds=_LIST_SECONDS) as answer:
                body = await _read_body(answer, _MAX_LIST)
        if answer.status != 200:
            raise self._refuse(answer.status, body)
        try:
            models = msgspec.json.decode(body, type=_Models)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise AnswerFailed(f"{self.where} does not speak OpenAI's API") from None
        return [each.id for each in models.data]

    @asynccontextmanager
    async def open_answer(
        self, messages: Sequence[Message], sampling: Mapping[str, object]
    ) -> AsyncIterator[AsyncIterator[Piece]]:
        body = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            **sampling,
        }
        if is_open(messages):
            # Fields of trioserve and vLLM; llama-server needs none.
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        # json and not msgspec, which refuses the lone surrogates of a pasted text.
        content = json.dumps(body).encode()
        with self.explaining():
            async with self._send("POST", "chat/completions", content) as answer:
                if answer.status != 200:
                    refusal = await _read_body(answer, _MAX_REFUSAL)
                    raise self._refuse(answer.status, refusal)
                async with aclosing(answer.aiter_stream()) as parts:
                    yield _PieceReader(parts, self)

    def _send(
        self, method: str, path: str, body: bytes = b"", seconds: float | None = None
    ) -> AbstractAsyncContextManager[httpcore2.Response]:
        """Send a request.

        Args:
          seconds: to wait for each part of the answer. A model may think for minutes
            before its first token; Ctrl-C stops it.
        """
        headers: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(self._base).netloc,
            # Compressed events would come late and together.
            "Accept-Encoding": "identity",
            "User-Agent": "trioserve",
            "X-Session-Id": self._session,
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if body:
            headers["Content-Type"] = "application/json"
        timeout = {"connect": _CONNECT_SECONDS, "read": seconds, "pool": None}
        return self._pool.stream(
            method,
            f"{self._base}/{path}",
            headers=headers,
            content=body,
            extensions={"timeout": timeout},
        )

    @contextmanager
    def explaining(self, *, has_begun: bool = False) -> Iterator[None]:
        """Turn errors of the connection into sentences.

        Args:
          has_begun: the answer has.
        """
        try:
            yield
        except _CONNECTION_ERRORS as error:
            raise AnswerFailed(self._explain(error, has_begun)) from None
        except self._route.failures:
            raise AnswerFailed(
                f"the proxy of {self._route.variable} in the environment does not speak "
                "SOCKS 5"
            ) from None

    def _explain(self, error: Exception, has_begun: bool) -> str:
        if has_begun:
            reason = explain_connection(error)
            return f"{self.where} ended in the middle of the answer: {reason}"
        if self._route.variable and not isinstance(find_cause(error), ssl.SSLError):
            return (
                f"no server answers at {self.where}, asked through the proxy of "
                f"{self._route.variable} in the environment: {explain_connection(error)}"
            )
        return explain_no_answer(self.where, error)

    def _refuse(self, status: int, body: bytes) -> AnswerFailed:
        if status in (401, 403):
            return AnswerFailed(
                f"{self.where} does not take this key"
                if self._key is not None
                else f"{self.where} wants a key: --api-key or --api-key-file"
            )
        message = read_reason(body)
        if status in (404, 405) and not message:
            return AnswerFailed(f"{self.where} does not speak OpenAI's API")
        return AnswerFailed(f"{self.where} answers {status}: {message or 'no reason'}")


class _PieceReader:
    """The pieces of an answer.

    Args:
      parts: of the body.
      server: explains errors of the connection.
    """

    def __init__(self, parts: AsyncIterator[bytes], server: RemoteModel) -> None:
        self._parts = parts
        self._server = server
        self._events = EventReader()
        self._pieces: deque[Piece] = deque()

    def __aiter__(self) -> _PieceReader:
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            with self._server.explaining(has_begun=True):
                try:
                    part = await anext(self._parts)
                except StopAsyncIteration:
                    self._finish()
            self._pieces.extend(read_pieces(self._events, part))
        return self._pieces.popleft()

    def _finish(self) -> NoReturn:
        """Raise the end of the iterator, or the reason why it comes too early."""
        if self._events.has_ended:
            raise StopAsyncIteration
        raise AnswerFailed(f"{self._server.where} ended in the middle of the answer")


@asynccontextmanager
async def open_remote(
    config: RemoteConfig, model: str | None
) -> AsyncIterator[Answerer]:
    """Talk to a server.

    Args:
      model: None takes the first of the server's.

    Raises:
      InvalidConfig: the file with the key or the certificates cannot be read.
      AnswerFailed: the server or the proxy cannot be asked, or has no such model.
      MissingExtra: as find_route.
    """
    key = config.read_key()
    route = find_route(config)
    async with httpcore2.AsyncConnectionPool(
        ssl_context=config.make_tls(),
        uds=config.uds,
        proxy=route.proxy,
        # A server may have closed a connection by the next question.
        max_keepalive_connections=0,
    ) as pool:
        where = config.uds or config.url.rstrip("/")
        remote = RemoteModel(pool, find_base(config.url), where, key, route)
        await remote.choose(model)
        yield remote


def find_base(url: str) -> str:
    """Return the address of a server up to /v1, in ASCII; RemoteConfig has checked it."""
    scheme = urlsplit(url).scheme
    return f"{scheme}://{find_netloc(url)}{find_base_path(url)}/v1"


async def _read_body(answer: httpcore2.Response, most: int) -> bytes:
    """Return the first bytes of a body, of this number or of a little more."""
    body = b""
    async with aclosing(answer.aiter_stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > most:
                break
    return body


def _enumerate(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and others"
