"""The endpoints of Anthropic's API, their errors and their header fields."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from ...http.keys.key_use import KeyUse
from ...http.route import Dialect, Route
from ...http.wire.respond import EVENTS, JSON
from .answers import (
    STATUSES,
    AnthropicError,
    AnthropicMessage,
    MessageEvent,
    TokenCount,
)
from .body import COUNT_TOKENS_BODY, MESSAGES_BODY
from .handler import answer_count_tokens, answer_messages

# The name of X-Request-Id that Anthropic's clients read.
_REQUEST_ID: Final = "Request-Id"


def _list_fields(request_id: str, use: KeyUse) -> Mapping[str, str]:
    """Return the id, and anthropic-ratelimit-* if the key has a limit of tokens."""
    if (limit := use.key.tokens_per_minute) is None:
        return {_REQUEST_ID: request_id}
    reset = timedelta(seconds=use.measure_reset(limit))
    at = (datetime.now(timezone.utc) + reset).isoformat(timespec="seconds")
    return {
        _REQUEST_ID: request_id,
        "anthropic-ratelimit-tokens-limit": str(limit),
        "anthropic-ratelimit-tokens-remaining": str(use.num_left),
        "anthropic-ratelimit-tokens-reset": at.replace("+00:00", "Z"),
    }


ANTHROPIC: Final = Dialect(
    error=AnthropicError,
    describe=AnthropicError.of,
    list_fields=_list_fields,
    statuses=STATUSES,
)

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v1/messages",),
        handler=answer_messages,
        summary="Answer a conversation, in the form of Anthropic's API.",
        bodies=(MESSAGES_BODY,),
        example={
            "model": "MODEL",
            "messages": [{"role": "user", "content": "Hello!"}],
            "max_tokens": 50,
        },
        answers={JSON: AnthropicMessage, EVENTS: MessageEvent},
        dialect=ANTHROPIC,
    ),
    Route(
        method="POST",
        paths=("/v1/messages/count_tokens",),
        handler=answer_count_tokens,
        summary="Count the tokens of a conversation, in the form of Anthropic's API.",
        bodies=(COUNT_TOKENS_BODY,),
        example={"model": "MODEL", "messages": [{"role": "user", "content": "Hello!"}]},
        answers={JSON: TokenCount},
        dialect=ANTHROPIC,
    ),
)
