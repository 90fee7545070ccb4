"""POST /api/chat and POST /api/generate."""

from __future__ import annotations

from functools import partial

from quart import Response

from ...frontend import TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import LINES, respond_built, respond_json
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..chat.handler import render_chat
from ..chat.request import ChatRequest
from ..completions.handler import render_completion
from ..completions.request import CompletionRequest
from ..decode.body import forget
from ..shared.generation import fit_max_tokens, open_stream
from ..shared.logprobs import TokenTexts, count_entries
from ..shared.requests import GenerationRequest
from ..shared.sse import respond_events
from .body import GENERATE_BODY, OLLAMA_CHAT_BODY, read_ollama
from .chat import (
    check_context,
    explain_fields,
    list_messages,
    locate_prompt,
    to_chat_request,
    to_completion_request,
)
from .events import (
    SPACE,
    Lines,
    MakeLine,
    make_chat_line,
    make_generate_line,
    make_load_line,
)
from .messages import OllamaMappings
from .requests import GenerateRequest, OllamaChatRequest


async def answer_ollama_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, line by line or at once."""
    body, engine = await read_ollama(
        state, request, OLLAMA_CHAT_BODY, state.require_text
    )
    check_context(body.options, engine)
    if not body.messages:
        body.check_load()
        return respond_json(make_load_line(make_chat_line, body.model))
    asked, prompt, sampling = await _render_chat(request, engine, body)
    # They may be megabytes long.
    forget(body, messages=None)
    return await _answer(
        *(state, request, engine, asked, prompt, sampling), make_chat_line
    )


async def answer_generate(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a prompt, line by line or at once."""
    body, engine = await read_ollama(state, request, GENERATE_BODY, state.require_text)
    check_context(body.options, engine)
    if body.is_empty:
        body.check_load()
        return respond_json(make_load_line(make_generate_line, body.model))
    render = _continue_prompt if body.is_plain else _render_prompt
    asked, prompt, sampling = await render(request, engine, body)
    forget(body, prompt=None, suffix=None, images=None)
    return await _answer(
        *(state, request, engine, asked, prompt, sampling), make_generate_line
    )


async def _render_chat(
    request: ScopedRequest, engine: TextEngine, body: OllamaChatRequest
) -> tuple[ChatRequest, Prompt, SamplingParams]:
    messages = OllamaMappings(body.messages or ())
    with explain_fields(messages.locate, body):
        asked = to_chat_request(body, engine)
        return asked, *await render_chat(request, engine, asked, messages)


async def _render_prompt(
    request: ScopedRequest, engine: TextEngine, body: GenerateRequest
) -> tuple[ChatRequest, Prompt, SamplingParams]:
    """Put a prompt into the chat template, as the message of a user."""
    messages = OllamaMappings(list_messages(body))
    with explain_fields(lambda name: locate_prompt(body, messages.locate(name)), body):
        asked = to_chat_request(body, engine)
        return asked, *await render_chat(request, engine, asked, messages)


async def _continue_prompt(
    request: ScopedRequest, engine: TextEngine, body: GenerateRequest
) -> tuple[CompletionRequest, Prompt, SamplingParams]:
    with explain_fields(body=body):
        asked = to_completion_request(body)
        [prompt], sampling = await render_completion(request, engine, asked)
    forget(asked, prompt="", suffix=None)
    return asked, prompt, sampling


async def _answer(
    state: ServerState,
    request: ScopedRequest,
    engine: TextEngine,
    asked: GenerationRequest,
    prompt: Prompt,
    sampling: SamplingParams,
    make: MakeLine,
) -> Response:
    sampling = fit_max_tokens(engine, prompt, sampling)
    with explain_fields():
        meter = await open_stream(state, request, asked, engine, [prompt], sampling)
    lines = Lines(
        make,
        asked.model or engine.info.name,
        meter,
        TokenTexts(engine.renderer.token_bytes),
        arrived_at=request.arrived_at,
        load_seconds=request.model.load_seconds,
    )
    workers = engine.renderer.workers
    if asked.stream:
        return respond_events(
            request, meter, lines, workers, comment=SPACE, content_type=LINES
        )
    completed = await meter.collect()
    build = partial(lines.build, completed[0])
    return await respond_built(workers, build, count_entries(completed))
