"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial

from quart import Response

from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built
from ..decode.body import read_request
from ..shared.generation_steps import make_header, make_token_texts, open_stream
from ..shared.logprobs import count_entries
from ..shared.message_mappings import MessageMappings
from ..shared.sse import respond_events
from .answers import build_answer
from .body import CHAT_BODY
from .events import ChatEvents
from .prompt import render_chat


async def answer_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, at once or token by token."""
    body, engine = await read_request(state, request, CHAT_BODY)
    prompt, sampling = await render_chat(
        request, engine, body, MessageMappings(body.messages)
    )
    # Messages may be megabytes long. At most the last one is still needed.
    body.forget(messages=body.messages[-1:] if body.echo else ())
    meter = await open_stream(state, request, body, engine, [prompt], sampling)
    header = make_header("chatcmpl", request, body, engine)
    texts = make_token_texts(body, engine)
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
