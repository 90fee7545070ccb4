"""The endpoints of Anthropic's API."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import EVENTS, JSON
from .answers import AnthropicMessage, MessageEvent, TokenCount
from .body import COUNT_TOKENS_BODY, MESSAGES_BODY
from .dialect import ANTHROPIC
from .handler import answer_count_tokens, answer_messages

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
