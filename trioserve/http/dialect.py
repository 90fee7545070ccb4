"""The parts of every answer and every error of one dialect of the API, such as OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ..errors import TrioserveError
from .keys.key_use import KeyUse
from .wire.error_body import ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The errors and the header fields of one API.

    Attributes:
      error: the struct of all errors.
      describe: makes this struct of an error and the id of its request.
      list_fields: returns header fields of any answer, by the id and the key of its request.
      statuses: the statuses that replace the statuses of this server's errors.
    """

    error: type[msgspec.Struct]
    describe: Callable[[TrioserveError, str], msgspec.Struct]
    list_fields: Callable[[str, KeyUse], Mapping[str, str]]
    statuses: Mapping[int, int] = field(default_factory=dict)

    def choose_status(self, error: TrioserveError) -> int:
        return self.statuses.get(error.status, error.status)


def _list_fields(request_id: str, use: KeyUse) -> Mapping[str, str]:
    """Return x-ratelimit-*; nothing if the key has no limit of tokens.

    OpenAI's API also counts the requests of a minute. This server has no such limit.
    """
    if (limit := use.key.tokens_per_minute) is None:
        return {}
    return {
        "x-ratelimit-limit-tokens": str(limit),
        "x-ratelimit-remaining-tokens": str(use.num_left),
        "x-ratelimit-reset-tokens": f"{use.measure_reset(limit):.3f}s",
    }


OPENAI: Final = Dialect(
    error=ErrorBody,
    describe=lambda error, request_id: ErrorBody.of(error),
    list_fields=_list_fields,
)
