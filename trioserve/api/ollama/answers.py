"""The structs of answers, lines and errors in the shapes of Ollama's API.

Source: the types of Ollama's Python client 0.6 and of its server (api/types.go).
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import ModelNotFound, TrioserveError, join_names
from ..pooling.answers import Numbers
from ..shared.logprobs import TokenLogprob


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of all lines. Those behind `done` are in the last line alone.

    Args:
      model: the name in the request.
      done_reason: stop, length or load; also deadline and repetition, which are this
        server's own.
      total_duration: nanoseconds since the request came.
      load_duration: nanoseconds for which the request waited for one of several models.
      prompt_eval_duration: nanoseconds from the first step to the first token.
      eval_duration: nanoseconds from the first token to the end.
    """

    model: str
    created_at: datetime
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ReplyFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function of a call; `arguments` is an object."""

    index: int
    name: str
    arguments: msgspec.Raw


class ReplyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A whole call of a tool."""

    id: str
    function: ReplyFunction


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The message of an answer, or the next part of it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[ReplyCall, ...] | UnsetType = UNSET


class ChatLine(Line, frozen=True, kw_only=True):
    """A line of POST /api/chat, or its whole answer."""

    message: Reply
    logprobs: tuple[TokenLogprob, ...] | UnsetType = UNSET


class GenerateLine(Line, frozen=True, kw_only=True):
    """A line of POST /api/generate, or its whole answer."""

    response: str = ""
    thinking: str | UnsetType = UNSET
    logprobs: tuple[TokenLogprob, ...] | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /api/embed; for the times see Line."""

    model: str
    embeddings: tuple[Numbers, ...] = ()
    total_duration: int
    load_duration: int
    prompt_eval_count: int = 0


class OllamaEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /api/embeddings."""

    embedding: Numbers


class OllamaError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an answer with an error, and the line of an error in a stream."""

    error: str

    @classmethod
    def of(cls, error: TrioserveError, request_id: str = "") -> OllamaError:
        if isinstance(error, ModelNotFound):
            # Tools look for these words.
            served = join_names([f"'{each}'" for each in error.served])
            return cls(
                error=f"model '{error.name}' not found; this server has {served}"
            )
        return cls(error=str(error))
