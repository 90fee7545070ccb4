"""Steps that all endpoints which generate share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

import trio

from ...frontend import StreamLimits, TextEngine
from ...http.keys.key_use import Ticket
from ...http.record.ended_request import SamplingFacts
from ...http.record.stream_meter import StreamMeter, StreamTimes
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import tell_time
from ...render import RendererWorkers, TokenizeOptions
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from .chunks import StreamHeader
from .logprobs import TokenTexts
from .message_mappings import LazyMappings
from .requests import GenerationRequest
from .sampling import naming_sampling, to_sampling

# Each takes half a microsecond to measure.
_FEW_PARTS: Final = 1024


def make_header(
    prefix: str, request: ScopedRequest, body: GenerationRequest, engine: TextEngine
) -> StreamHeader:
    """Make the fields that all chunks of an answer share."""
    return StreamHeader(
        id=f"{prefix}-{request.id.take(body.request_id)}",
        created=tell_time(),
        model=engine.info.name,
        system_fingerprint=engine.info.fingerprint,
        include_usage=body.reports_usage,
    )


def make_token_texts(body: GenerationRequest, engine: TextEngine) -> TokenTexts:
    return TokenTexts(
        engine.renderer.token_bytes,
        as_token_ids=bool(body.return_tokens_as_token_ids),
    )


def make_tokenize_options(
    body: GenerationRequest, sampling: SamplingParams, engine: TextEngine
) -> TokenizeOptions:
    """Return the options by which prompts become token ids.

    A truncate_prompt_tokens of -1 leaves just enough room for the output.
    """
    limit = body.truncate_prompt_tokens
    if limit == -1:
        limit = max(1, engine.info.max_model_len - (sampling.max_tokens or 1))
    return TokenizeOptions(
        add_special_tokens=body.adds_special_tokens,
        truncate_to=limit,
        truncation_side=body.truncation_side or "left",
        cache_salt=body.cache_salt or "",
    )


def make_sampling(body: GenerationRequest, engine: TextEngine) -> SamplingParams:
    """Return the sampling parameters, without the bad words, which need the tokenizer.

    Raises:
      InvalidParameter: a number is out of its range.
    """
    info = engine.info
    return to_sampling(
        body, dict(info.default_sampling), max_logprobs=info.max_logprobs
    )


async def tokenize_bad_words(
    body: GenerationRequest,
    engine: TextEngine,
    sampling: SamplingParams,
) -> SamplingParams:
    """Add the token ids of the words that the model must not write.

    Raises:
      InvalidParameter: a word is too long, or has no token.
    """
    if not body.bad_words:
        return sampling
    words = await engine.renderer.render_bad_words(body.bad_words)
    return replace(sampling, bad_words=words)


async def count_characters(workers: RendererWorkers, messages: LazyMappings) -> int:
    """Return the length of messages; of many parts, in a worker."""
    if messages.has_more_parts(_FEW_PARTS):
        return await workers.run(lambda: messages.num_characters)
    return messages.num_characters


async def open_stream(
    state: ServerState,
    request: ScopedRequest,
    body: GenerationRequest,
    engine: TextEngine,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
) -> StreamMeter:
    """Begin to generate, and release the body.

    Generation ends when the scope of the request ends.
    """
    request.body.release()
    request.progress.enter("queue")
    meter = await request.generation.enter_async_context(
        open_meter(
            *(state, body, engine, prompts, sampling),
            ticket=request.ticket,
            arrived_at=request.arrived_at,
            limits=request.time_limit.limit_stream(body.max_queue_seconds),
        )
    )
    meter.on_deadline = request.cancellation.note_end
    request.progress.follow(meter)
    request.sampling = SamplingFacts.of(sampling)
    request.live.stream = request.meter = meter
    return meter


@asynccontextmanager
async def open_meter(
    state: ServerState,
    body: GenerationRequest,
    engine: TextEngine,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    *,
    ticket: Ticket,
    arrived_at: float,
    limits: StreamLimits,
) -> AsyncIterator[StreamMeter]:
    """Generate until the block is left.

    Args:
      ticket: counts the request and its tokens.
      arrived_at: trio.current_time() when the request came.
      limits: the time that the stream may take.
    """
    submitted_at = trio.current_time()
    async with AsyncExitStack() as exits:
        exits.enter_context(ticket.hold())
        with naming_sampling(body):
            stream = await exits.enter_async_context(
                engine.open_text(
                    prompts,
                    sampling,
                    body.text_params,
                    priority=body.priority or 0,
                    splits_reasoning=body.splits_reasoning,
                    tools=body.shown_tools,
                    limits=limits,
                    client=ticket.use.key.client,
                )
            )
        state.counts.count_params(sampling)
        times = StreamTimes(
            state.counts, arrived_at=arrived_at, submitted_at=submitted_at
        )
        meter = StreamMeter(stream, times, ticket.use.charge)
        ticket.use.charge(meter.num_prompt_tokens)
        yield meter
