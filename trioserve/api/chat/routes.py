"""The endpoint of chats."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import EVENTS, JSON
from .answers import ChatChunk, ChatCompletion
from .body import CHAT_BODY
from .handler import answer_chat

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v1/chat/completions",),
        handler=answer_chat,
        summary="Answer a conversation, at once or as server-sent events.",
        bodies=(CHAT_BODY,),
        example={"messages": [{"role": "user", "content": "Hello!"}]},
        answers={JSON: ChatCompletion, EVENTS: ChatChunk},
    ),
)
