"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET
from quart import Response

from ...http.record.stream_meter import StreamMeter
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built
from ...types.output import TextDelta, ToolCallDelta
from ..decode.body import read_request
from ..shared.answers import (
    AnswerFunction,
    AnswerToolCall,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
)
from ..shared.chunks import StreamHeader
from ..shared.generation_steps import (
    make_header,
    make_token_texts,
    open_stream,
)
from ..shared.logprobs import (
    TokenTexts,
    build_prompt_logprobs,
    count_entries,
)
from ..shared.message_mappings import MessageMappings
from ..shared.sse import respond_events
from .body import CHAT_BODY
from .events import (
    ChatEvents,
    make_logprobs,
    tell_finish_reason,
)
from .prompt import render_chat
from .request import ChatRequest


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
    build = partial(_build_answer, body, header, meter, texts, completed)
    return await respond_built(engine.renderer.workers, build, count_entries(completed))


def _build_answer(
    body: ChatRequest,
    header: StreamHeader,
    meter: StreamMeter,
    texts: TokenTexts,
    completed: Sequence[TextDelta],
) -> ChatCompletion:
    return ChatCompletion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(
            _build_choice(
                body,
                whole,
                texts,
                splits_reasoning=meter.stream.splits_reasoning,
                splits_tool_calls=meter.stream.splits_tool_calls,
            )
            for whole in completed
        ),
        usage=meter.usage,
        metrics=meter.metrics if body.return_metrics else UNSET,
        prompt_logprobs=(
            None
            if body.prompt_logprobs is None
            else build_prompt_logprobs(completed[0].prompt_logprobs, texts)
        ),
        prompt_token_ids=(
            meter.prompts[0].token_ids if body.return_token_ids else UNSET
        ),
    )


def _build_choice(
    body: ChatRequest,
    whole: TextDelta,
    texts: TokenTexts,
    *,
    splits_reasoning: bool,
    splits_tool_calls: bool,
) -> ChatChoice:
    shows_reasoning = splits_reasoning and body.includes_reasoning
    calls = tuple(map(_build_call, whole.tool_calls))
    text = body.echoed_text + whole.text
    return ChatChoice(
        index=whole.index,
        message=ChatMessage(
            content=text if text or not splits_tool_calls else None,
            reasoning=(whole.reasoning or None) if shows_reasoning else UNSET,
            tool_calls=calls or UNSET,
        ),
        logprobs=make_logprobs(body, whole, texts),
        finish_reason=tell_finish_reason(whole.finish_reason, calls=bool(calls)),
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if body.return_token_ids else UNSET,
    )


def _build_call(call: ToolCallDelta) -> AnswerToolCall:
    return AnswerToolCall(
        id=call.id, function=AnswerFunction(name=call.name, arguments=call.arguments)
    )
