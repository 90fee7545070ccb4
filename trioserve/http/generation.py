"""What both generating endpoints do alike."""

from __future__ import annotations

from collections.abc import Sequence
import re
import time
import uuid

from ..steps import Prompt, SamplingParams
from ..text_engine import TextEngine, TextParams
from .chunks import StreamHeader
from .logprobs import TokenTexts
from .meter import MeteredStream
from .requests import GenerationRequest
from .scope import ScopedRequest
from .state import ServerState

# What may come back in an id; h11 lets control characters and latin-1 through.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def make_header(
    prefix: str, request: ScopedRequest, asked: GenerationRequest, engine: TextEngine
) -> StreamHeader:
    """Begin an answer; its id ends in the client's own where it sent one."""
    sent = request.headers.get("X-Request-Id", "")
    number = asked.request_id or (
        sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex
    )
    return StreamHeader(
        id=f"{prefix}-{number}",
        # The one wall clock: clients show it, nothing is computed from it.
        created=int(time.time()),
        model=engine.info.name,
        system_fingerprint=engine.info.fingerprint,
        include_usage=asked.reports_usage,
    )


def make_token_texts(asked: GenerationRequest, engine: TextEngine) -> TokenTexts:
    return TokenTexts(
        engine.renderer.token_bytes,
        as_token_ids=bool(asked.return_tokens_as_token_ids),
    )


async def open_stream(
    state: ServerState,
    request: ScopedRequest,
    asked: GenerationRequest,
    engine: TextEngine,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
) -> MeteredStream:
    """Begin to generate; the request's scope ends it."""
    text = TextParams(
        stop=asked.stop_strings,
        include_stop_str_in_output=bool(asked.include_stop_str_in_output),
        skip_special_tokens=asked.skips_special_tokens,
    )
    stream = await request.resources.enter_async_context(
        engine.open_text(prompts, sampling, text, priority=asked.priority or 0)
    )
    return MeteredStream(stream, state.metrics, arrived_at=request.arrived_at)
