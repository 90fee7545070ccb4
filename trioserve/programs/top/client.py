"""Asks a server for its running requests, and cancels them."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from ...config import (
    RemoteConfig,
    find_base_path,
)
from ...errors.connections import explain_no_answer
from ...errors.error_bodies import read_reason

T = TypeVar("T")

_SECONDS: Final = 5.0

# Ten thousand requests and more.
_MAX_BYTES: Final = 64 * 2**20


class TopError(Exception):
    """Raised when the server cannot be asked; the message says why."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A running request, as GET /v1/requests shows it."""

    id: str
    method: str
    path: str
    key: str | None = None
    phase: str
    age_seconds: float
    timeout_seconds: float | None = None
    prompt_tokens: int
    completion_tokens: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a request."""

    name: str
    awaits: list[str]
    tasks: list[Task]
    num_tasks_left_out: int = 0


class Details(Request, frozen=True, kw_only=True):
    """A running request, as GET /v1/requests/ID shows it."""

    worker: str
    deadline_seconds: float | None
    kv_blocks: int | None
    task: Task | None


class _Requests(msgspec.Struct, frozen=True):
    data: list[Request]


class _Details(msgspec.Struct, frozen=True):
    data: list[Details]


class Client:
    """Asks one server, each time over a new connection.

    Raises:
      InvalidConfig: the file with the key or the certificates cannot be read.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self._parts = urlsplit(config.url)
        self._path = f"{find_base_path(config.url)}/v1/requests"
        self._key = config.read_key()
        self._tls = config.make_tls()

    def list_requests(self) -> list[Request]:
        """Return the requests that the key may see, the oldest first.

        Raises:
          TopError
        """
        return self._ask("GET", self._path, _Requests).data

    def find_details(self, request_id: str) -> list[Details]:
        """Return the requests with an id; none if they have ended.

        Raises:
          TopError
        """
        try:
            return self._ask("GET", self._name(request_id), _Details).data
        except _NotThere:
            return []

    def cancel(self, request_id: str) -> int:
        """Cancel the requests with an id; returns how many there were.

        Raises:
          TopError
        """
        try:
            return len(self._ask("DELETE", self._name(request_id), _Requests).data)
        except _NotThere:
            return 0

    def cancel_all(self) -> int:
        """Cancel all requests that the key may see; returns how many there were.

        Raises:
          TopError
        """
        return len(self._ask("DELETE", self._path, _Requests).data)

    def _name(self, request_id: str) -> str:
        return f"{self._path}/{quote(request_id, safe='')}"

    def _ask(self, method: str, path: str, kind: type[T]) -> T:
        headers = {"Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._connect()
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise TopError(explain_no_answer(self._config.where, error)) from None
        finally:
            connection.close()
        self._check(answer.status, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise TopError(f"{self._config.where} is no trioserve server") from None

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._config.uds is not None:
            return _UnixConnection(self._config.uds, host, self._tls)
        if self._tls is not None:
            return http.client.HTTPSConnection(
                host, port, timeout=_SECONDS, context=self._tls
            )
        return http.client.HTTPConnection(host, port, timeout=_SECONDS)

    def _check(self, status: int, body: bytes) -> None:
        if status == 200:
            return
        if status == 401:
            raise TopError(self._config.explain_unknown_key())
        message = read_reason(body)
        if status == 404 and message.startswith("No request with the id"):
            raise _NotThere(message)
        raise TopError(
            f"{self._config.where} answers {status}: {message or 'no reason'}"
        )


class _NotThere(TopError):
    """Raised when no request has an id."""


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, host: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, timeout=_SECONDS)
        self._uds = path
        self._tls = tls

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(_SECONDS)
            sock.connect(self._uds)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = sock
