"""The endpoint of completions."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import EVENTS, JSON
from ...types.sampling import SAMPLING_BOUNDS
from .answers import Completion, CompletionChunk
from .body import COMPLETION_BODY
from .handler import answer_completion

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v1/completions",),
        handler=answer_completion,
        summary="Continue one or several prompts, each a string or token ids.",
        bodies=(COMPLETION_BODY,),
        example={"prompt": "Once upon a time", "max_tokens": 20},
        # With echo, a completion may have no token.
        bounds={"max_tokens": SAMPLING_BOUNDS["max_tokens"]},
        answers={JSON: Completion, EVENTS: CompletionChunk},
    ),
)
