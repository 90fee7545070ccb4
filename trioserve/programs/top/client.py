"""Asks a server for its running requests, and cancels them."""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
import trio

from ...config import RemoteConfig
from ..http.client import FAILURES, HttpAnswer, find_opener
from ..http.reasons import explain_no_answer, read_reason

T = TypeVar("T")

_SECONDS: Final = 5.0

_PATH: Final = "/v1/requests"


class TopError(Exception):
    """Raised when the server cannot be asked; the message says why."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A running request, as GET /v1/requests shows it."""

    id: str
    method: str
    path: str
    model: str | None = None
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


class _IsSleeping(msgspec.Struct, frozen=True):
    is_sleeping: bool


class _Status(msgspec.Struct, frozen=True):
    value: str


class _Model(msgspec.Struct, frozen=True):
    """A model or an adapter; only of several models it has a status."""

    id: str
    parent: str | None = None
    status: _Status | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class Client:
    """Asks one server, each time over a new connection.

    Raises:
      InvalidConfig: the file with the key or the certificates cannot be read.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self._open = find_opener(config)
        # Whether the server has several models; None until it has told.
        self._has_states: bool | None = None

    def list_requests(self) -> list[Request]:
        """Return the requests that the key may see, the oldest first.

        Raises:
          TopError
        """
        return self._ask("GET", _PATH, _Requests).data

    def describe_engines(self) -> str:
        """Return the states of several models, or whether the only engine is asleep.

        Models that are not loaded are left out, and so is an engine that is awake.

        Raises:
          TopError
        """
        states = {} if self._has_states is False else self._list_states()
        if states:
            return ", ".join(
                f"{name} {value}"
                for name, value in states.items()
                if value != "unloaded"
            )
        answer = self._ask("GET", "/is_sleeping", _IsSleeping)
        return "the engine is asleep" if answer.is_sleeping else ""

    def _list_states(self) -> dict[str, str]:
        """Return the states of several models by their names; none of a single one."""
        try:
            models = self._ask("GET", "/v1/models", _Models).data
        except TopError:
            # A single model that is not ready, for one.
            return {}
        states = {
            each.id: each.status.value
            for each in models
            if each.status is not None and each.parent is None
        }
        self._has_states = bool(states)
        return states

    def find_details(self, request_id: str) -> list[Details]:
        """Return the requests with an id; none if they have ended.

        Raises:
          TopError
        """
        try:
            return self._ask("GET", _name(request_id), _Details).data
        except _NotThere:
            return []

    def cancel(self, request_id: str) -> int:
        """Cancel the requests with an id; returns how many there were.

        Raises:
          TopError
        """
        try:
            return len(self._ask("DELETE", _name(request_id), _Requests).data)
        except _NotThere:
            return 0

    def cancel_all(self) -> int:
        """Cancel all requests that the key may see; returns how many there were.

        Raises:
          TopError
        """
        return len(self._ask("DELETE", _PATH, _Requests).data)

    def _ask(self, method: str, path: str, kind: type[T]) -> T:
        try:
            answer = trio.run(self._fetch, method, path)
        except FAILURES as error:
            raise TopError(explain_no_answer(self._config.where, error)) from None
        self._check(answer.status, answer.body)
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise TopError(f"{self._config.where} is not a trioserve server") from None

    async def _fetch(self, method: str, path: str) -> HttpAnswer:
        with trio.move_on_after(_SECONDS):
            async with self._open() as connection:
                return await connection.ask(method, path)
        raise TimeoutError("timed out")

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


def _name(request_id: str) -> str:
    return f"{_PATH}/{quote(request_id, safe='')}"
