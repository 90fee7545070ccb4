"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET
from quart import Response

from ...frontend import TextEngine
from ...types.output import TextDelta
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..connection.scope import ScopedRequest
from ..decode.body import read_request
from ..decode.message_mappings import MessageMappings, to_chat_options
from ..decode.requests import ChatRequest
from ..respond import respond_built
from ..state import ServerState
from ..stream_meter import StreamMeter
from ..wire.chunks import ChatChunks, ReasoningChunks, StreamHeader, usage_event
from ..wire.logprobs import (
    TokenTexts,
    build_chat_logprobs,
    build_prompt_logprobs,
    count_entries,
)
from ..wire.responses import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from .generation_steps import (
    make_header,
    make_sampling,
    make_token_texts,
    make_tokenize_options,
    open_stream,
    tokenize_bad_words,
)
from .sse import respond_events


async def answer_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, at once or token by token."""
    body, engine = await read_request(state, request, ChatRequest)
    prompt, sampling = await _render(engine, body)
    # Without its messages, which may be megabytes long and are not needed any more.
    body = msgspec.structs.replace(body, messages=())
    meter = await open_stream(state, request, body, engine, [prompt], sampling)
    header = make_header("chatcmpl", request, body, engine)
    texts = make_token_texts(body, engine)
    if body.stream:
        return respond_events(
            request,
            meter,
            _ChatEvents(body, header, meter, texts),
            engine.renderer.workers,
        )
    completed = await meter.collect()
    build = partial(_build_answer, body, header, meter, texts, completed)
    return await respond_built(engine.renderer.workers, build, count_entries(completed))


async def _render(
    engine: TextEngine, body: ChatRequest
) -> tuple[Prompt, SamplingParams]:
    sampling = make_sampling(body, engine)
    messages = MessageMappings(body.messages)
    with engine.admit(sampling.n, messages.num_characters):
        sampling = await tokenize_bad_words(body, engine, sampling)
        prompt = await engine.renderer.render_chat(
            messages,
            to_chat_options(body),
            make_tokenize_options(body, sampling, engine),
        )
    return prompt, sampling


class _ChatEvents:
    """Writes the events of a streamed chat."""

    def __init__(
        self,
        body: ChatRequest,
        header: StreamHeader,
        meter: StreamMeter,
        texts: TokenTexts,
    ) -> None:
        self._body = body
        self._header = header
        self._meter = meter
        self._texts = texts
        self._chunks: dict[int, ChatChunks] = {}
        self._reasoning_chunks: dict[int, ReasoningChunks] = {}

    def write(self, delta: TextDelta) -> bytes:
        # The event with the role is sent with the first token, and not before it. So a
        # client that measures the time to the first chunk measures the first token.
        events = b""
        if delta.index not in self._chunks:
            self._chunks[delta.index] = ChatChunks(self._header, delta.index)
            events = self._start(self._chunks[delta.index])
        reasoning = delta.reasoning if self._body.includes_reasoning else ""
        # If the tokens are partly reasoning and partly answer, the answer's event gets the
        # log probabilities.
        if reasoning and delta.text:
            events += self._find_chunks(delta.index, reasoning).text(
                reasoning, usage=self._current_usage()
            )
            reasoning = ""
        return events + self._write_rest(delta, reasoning)

    def end(self) -> bytes:
        if not self._body.reports_usage:
            return b""
        return usage_event(ChatChunk, self._header, self._meter.usage)

    def _write_rest(self, delta: TextDelta, reasoning: str) -> bytes:
        """Write one event with the reasoning or the answer, and all other fields."""
        logprobs = _build_logprobs(self._body, delta, self._texts)
        token_ids = delta.token_ids if self._body.return_token_ids else None
        text = reasoning or delta.text
        # All text may be held back, because it may be the beginning of a stop string.
        if not (text or delta.finish_reason or logprobs or token_ids):
            return b""
        return self._find_chunks(delta.index, reasoning).text(
            text,
            logprobs=logprobs,
            token_ids=token_ids,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            usage=self._current_usage(),
        )

    def _find_chunks(self, index: int, reasoning: str) -> ChatChunks:
        if not reasoning:
            return self._chunks[index]
        # Most models do not reason, so this is made when it is needed.
        if index not in self._reasoning_chunks:
            self._reasoning_chunks[index] = ReasoningChunks(self._header, index)
        return self._reasoning_chunks[index]

    def _start(self, chunks: ChatChunks) -> bytes:
        shows_prompt = self._body.return_token_ids
        return chunks.start(
            prompt_token_ids=(
                self._meter.prompts[0].token_ids if shows_prompt else UNSET
            ),
            usage=self._current_usage(),
        )

    def _current_usage(self) -> Usage | None:
        if not self._body.reports_usage_continuously:
            return None
        return self._meter.usage


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
                body, whole, texts, splits_reasoning=meter.stream.splits_reasoning
            )
            for whole in completed
        ),
        usage=meter.usage,
        prompt_logprobs=(
            UNSET
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
) -> ChatChoice:
    shows_reasoning = splits_reasoning and body.includes_reasoning
    return ChatChoice(
        index=whole.index,
        message=ChatMessage(
            content=whole.text,
            reasoning=(whole.reasoning or None) if shows_reasoning else UNSET,
        ),
        logprobs=_build_logprobs(body, whole, texts),
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if body.return_token_ids else UNSET,
    )


def _build_logprobs(
    body: ChatRequest, delta: TextDelta, texts: TokenTexts
) -> ChatLogprobs | None:
    if not body.logprobs or not delta.logprobs:
        return None
    return build_chat_logprobs(delta.logprobs, texts)
