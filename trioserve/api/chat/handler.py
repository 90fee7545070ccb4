"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial

from quart import Response

from ...frontend import TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..decode.body import forget, read_request
from ..shared.generation import (
    count_characters,
    make_header,
    make_tokenize_options,
    open_stream,
    to_sampling,
    tokenize_bad_words,
)
from ..shared.logprobs import TokenTexts, count_entries
from ..shared.message_mappings import (
    LazyMappings,
    MessageMappings,
    to_chat_options,
)
from ..shared.sse import respond_events
from .answers import build_answer
from .body import CHAT_BODY
from .events import ChatEvents
from .request import ChatRequest


async def answer_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, at once or token by token."""
    body, engine = await read_request(state, request, CHAT_BODY, state.require_text)
    prompt, sampling = await render_chat(
        request, engine, body, MessageMappings(body.messages)
    )
    # Messages may be megabytes long. At most the last one is still needed.
    forget(body, messages=body.messages[-1:] if body.echo else ())
    meter = await open_stream(state, request, body, engine, [prompt], sampling)
    header = make_header("chatcmpl", request, body, engine)
    texts = TokenTexts(
        engine.renderer.token_bytes,
        as_token_ids=bool(body.return_tokens_as_token_ids),
    )
    if body.stream:
        return respond_events(
            request,
            meter,
            ChatEvents(body, header, meter, texts),
            engine.renderer.workers,
        )
    completed = await meter.collect()
    build = partial(build_answer, body, header, meter, texts, completed)
    return await respond_built(engine.renderer.workers, build, count_entries(completed))


async def render_chat(
    request: ScopedRequest,
    engine: TextEngine,
    body: ChatRequest,
    messages: LazyMappings,
) -> tuple[Prompt, SamplingParams]:
    """Admit a chat, and render its prompt.

    Args:
      messages: of the chat; the messages of `body` are not read.
    """
    info = engine.info
    sampling = to_sampling(body, info.default_sampling, max_logprobs=info.max_logprobs)
    num_characters = await count_characters(engine.renderer.workers, messages)
    limits = request.time_limit.limit_stream(body.max_queue_seconds)
    with engine.admit(
        1, num_characters, sampling, limits, request.ticket.use.key.client
    ) as prompts:
        if body.bad_words:
            sampling = await tokenize_bad_words(body.bad_words, engine, sampling)
        prompt = await engine.renderer.render_chat(
            messages,
            to_chat_options(body),
            make_tokenize_options(body, sampling, engine),
        )
        prompts.append(prompt)
    return prompt, sampling
