"""The structs that describe running requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from .progress import Phase


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being answered.

    Args:
      model: the model that it has or waits for; null if the server has one.
      key: the name of the client's key; None if the server has no keys.
      phase: body, load, render, queue, prefill, decode or write.
      timeout_seconds: its time limit; None if it has none.
      prompt_tokens, completion_tokens: 0 before the engine has the request, and for
        requests that do not generate.
    """

    id: str
    object: Literal["request"] = "request"
    method: str
    path: str
    model: str | None
    key: str | None
    phase: Phase
    age_seconds: float
    timeout_seconds: float | None
    prompt_tokens: int
    completion_tokens: int


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET and DELETE /v1/requests, the oldest request first."""

    object: Literal["list"] = "list"
    data: tuple[RequestCard, ...]


class TaskNode(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a request.

    Args:
      name: of its function.
      awaits: the functions in which it waits, with their lines; the innermost is last.
      tasks: those below it.
      num_tasks_left_out: tasks below it that are not shown, because there are too many.
    """

    name: str
    awaits: tuple[str, ...]
    tasks: tuple[TaskNode, ...]
    num_tasks_left_out: int = 0


class RequestDetails(RequestCard, frozen=True, kw_only=True):
    """A request that is being answered, with everything that it holds.

    Args:
      worker: where it is: "upload", "event loop", "renderer thread", "template process",
        "media thread", "media connection", "image processor" or the queue for one of these,
        "engine queue", "device" or "client".
      deadline_seconds: the time that is left of its limit; None if it has none.
      kv_blocks: of the KV cache, those that it shares counted once for each sequence; None
        if the engine process did not answer in time.
      task: the task that runs it; None when it has just ended.
    """

    worker: str
    deadline_seconds: float | None
    kv_blocks: int | None
    task: TaskNode | None


class RequestDetailsList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/requests/{request_id}, the oldest request first.

    Args:
      num_left_out: requests with this id that are not shown, because there are too many.
    """

    object: Literal["list"] = "list"
    data: tuple[RequestDetails, ...]
    num_left_out: int = 0
