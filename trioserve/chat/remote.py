"""Answers of a server that speaks OpenAI's API."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from ipaddress import ip_address
import json
import ssl
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import httpx2
import msgspec

from ..config import RemoteConfig
from .answers import Answerer, AnswerFailed, Message, Piece
from .events import EventReader, read_message

_CONNECT_SECONDS: Final = 10.0
_LIST_SECONDS: Final = 30.0

# The reason in an answer that refuses.
_MAX_REFUSAL: Final = 2**16

# More names would fill the screen.
_MAX_NAMES: Final = 8


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class RemoteModel:
    """An Answerer over HTTP.

    Args:
      client: with the address and the key.
      has_key: a key is sent.

    Attributes:
      where: the server, for messages.
    """

    def __init__(
        self, client: httpx2.AsyncClient, where: str, *, has_key: bool
    ) -> None:
        self.name = ""
        self.takes_images: bool | None = None
        self._client = client
        self.where = where
        self._has_key = has_key

    async def choose(self, name: str | None) -> None:
        """Choose a model of the server.

        Args:
          name: None takes the first.

        Raises:
          AnswerFailed: there is no such model, or the server cannot be asked.
        """
        names = await self._list_models()
        # A proxy may offer openai/* and the like.
        is_open = any("*" in each for each in names)
        if name is not None and name not in names and names and not is_open:
            raise AnswerFailed(
                f"{self.where} has no model {name!r}; it has {_enumerate(names)}"
            )
        if name is None and not names:
            raise AnswerFailed(f"{self.where} lists no model; name one by --model")
        self.name = name or names[0]

    async def _list_models(self) -> list[str]:
        with self.explaining():
            answer = await self._client.get("models", timeout=_LIST_SECONDS)
        if answer.status_code != 200:
            raise self._refuse(answer.status_code, answer.content)
        try:
            models = msgspec.json.decode(answer.content, type=_Models)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise AnswerFailed(
                f"{self.where} is no server that speaks OpenAI's API"
            ) from None
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
        # json and not msgspec, which refuses the lone surrogates of a pasted text.
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        with self.explaining():
            async with self._client.stream(
                "POST", "chat/completions", content=content, headers=headers
            ) as answer:
                if answer.status_code != 200:
                    refusal = await _read_refusal(answer)
                    raise self._refuse(answer.status_code, refusal)
                async with aclosing(answer.aiter_bytes()) as parts:
                    yield _PieceReader(parts, self)

    @contextmanager
    def explaining(self, *, has_begun: bool = False) -> Iterator[None]:
        """Turn errors of the connection into sentences.

        Args:
          has_begun: the answer has.
        """
        try:
            yield
        except httpx2.HTTPError as error:
            raise AnswerFailed(self._explain(error, has_begun)) from None

    def _explain(self, error: httpx2.HTTPError, has_begun: bool) -> str:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return (
                    f"the certificate of {self.where} is not trusted: "
                    f"{cause.verify_message} (--tls-cafile names others)"
                )
            if isinstance(cause, ssl.SSLError):
                return f"{self.where} speaks no TLS: {cause.reason}"
            if isinstance(cause, OSError) and cause.strerror:
                break
            cause = _find_cause(cause)
        reason = getattr(cause, "strerror", None) or str(error) or type(error).__name__
        if has_begun:
            return f"{self.where} ended in the middle of the answer: {reason}"
        return f"no server answers at {self.where}: {reason}"

    def _refuse(self, status: int, body: bytes) -> AnswerFailed:
        if status in (401, 403):
            return AnswerFailed(
                f"{self.where} does not take this key"
                if self._has_key
                else f"{self.where} wants a key: --api-key or --api-key-file"
            )
        message = read_message(body)
        if status in (404, 405) and not message:
            return AnswerFailed(f"{self.where} is no server that speaks OpenAI's API")
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
            self._pieces.extend(self._events.read(part))
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
      AnswerFailed: the server cannot be asked, or has no such model.
    """
    key = config.read_key()
    async with _make_client(config, key) as client:
        remote = RemoteModel(
            client, config.uds or config.url.rstrip("/"), has_key=key is not None
        )
        await remote.choose(model)
        yield remote


def _make_client(config: RemoteConfig, key: str | None) -> httpx2.AsyncClient:
    parts = urlsplit(config.url)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/"
    # Compressed events would come late and together.
    headers = {"Accept-Encoding": "identity"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    tls: Any = config.make_tls() or False
    is_here = config.uds is not None or _is_loopback(parts.hostname or "")
    return httpx2.AsyncClient(
        base_url=f"{parts.scheme}://{parts.netloc}{path}",
        headers=headers,
        # The model may think for minutes before its first token; Ctrl-C stops it.
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        # A server may have closed a connection by the next question.
        limits=httpx2.Limits(max_keepalive_connections=0),
        # The proxies of the environment lead elsewhere.
        trust_env=not is_here,
        verify=tls,
        transport=(
            None
            if config.uds is None
            else httpx2.AsyncHTTPTransport(uds=config.uds, verify=tls)
        ),
    )


def _find_cause(error: BaseException) -> BaseException | None:
    """Return the error below another one; trio has one for each address of a host."""
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _read_refusal(answer: httpx2.Response) -> bytes:
    body = b""
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > _MAX_REFUSAL:
            break
    return body


def _enumerate(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and others"
