"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET
from quart import Response

from ...frontend.text import TextEngine
from ...types.output import TextDelta
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..connection.scope import ScopedRequest
from ..decode.body import read_request
from ..decode.message_mappings import MessageMappings, to_chat_options
from ..decode.requests import ChatRequest
from ..respond import respond_built
from ..state import ServerState
from ..wire.chunks import ChatChunks, ReasoningChunks, StreamHeader, chat_usage_event
from ..wire.logprobs import (
    TokenTexts,
    build_chat_logprobs,
    build_prompt_logprobs,
    count_entries,
)
from ..wire.responses import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from ..wire.usage import MeteredStream
from .generation import (
    make_header,
    make_sampling,
    make_token_texts,
    make_tokenize_options,
    open_stream,
    tokenize_bad_words,
)
from .sse import respond_events


async def answer_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, whole or token by token."""
    body, engine = await read_request(state, request, ChatRequest)
    prompt, sampling = await _render(engine, body)
    # Or megabytes of the body would be kept for as long as the answer takes.
    body = msgspec.structs.replace(body, messages=())
    stream = await open_stream(state, request, body, engine, [prompt], sampling)
    header = make_header("chatcmpl", request, body, engine)
    texts = make_token_texts(body, engine)
    if body.stream:
        return respond_events(
            request,
            stream,
            _ChatEvents(body, header, stream, texts),
            engine.renderer.workers,
        )
    completed = await stream.collect()
    build = partial(_build_answer, body, header, stream, texts, completed)
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
    """The EventWriter of a chat."""

    def __init__(
        self,
        body: ChatRequest,
        header: StreamHeader,
        stream: MeteredStream,
        texts: TokenTexts,
    ) -> None:
        self._asked = body
        self._header = header
        self._stream = stream
        self._texts = texts
        self._chunks: dict[int, ChatChunks] = {}
        self._thoughts: dict[int, ReasoningChunks] = {}

    def write(self, delta: TextDelta) -> bytes:
        # The role goes out with the first token, not before it: whoever measures the
        # time to the first chunk measures the time to the first token.
        events = b""
        if delta.index not in self._chunks:
            self._chunks[delta.index] = ChatChunks(self._header, delta.index)
            events = self._start(self._chunks[delta.index])
        reasoning = delta.reasoning if self._asked.includes_reasoning else ""
        # Of tokens that are both, the log probabilities come with the answer.
        if reasoning and delta.text:
            events += self._choose(delta.index, reasoning).text(
                reasoning, usage=self._usage_so_far()
            )
            reasoning = ""
        return events + self._write_rest(delta, reasoning)

    def end(self) -> bytes:
        if not self._asked.reports_usage:
            return b""
        return chat_usage_event(self._header, self._stream.usage)

    def _write_rest(self, delta: TextDelta, reasoning: str) -> bytes:
        """Write the reasoning or the answer, and what else there is to say of it."""
        logprobs = _report(self._asked, delta, self._texts)
        token_ids = delta.token_ids if self._asked.return_token_ids else None
        text = reasoning or delta.text
        # A delta may be all held back, as the beginning of a stop string is.
        if not (text or delta.finish_reason or logprobs or token_ids):
            return b""
        return self._choose(delta.index, reasoning).text(
            text,
            logprobs=logprobs,
            token_ids=token_ids,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            usage=self._usage_so_far(),
        )

    def _choose(self, index: int, reasoning: str) -> ChatChunks:
        if not reasoning:
            return self._chunks[index]
        # Most models have none.
        if index not in self._thoughts:
            self._thoughts[index] = ReasoningChunks(self._header, index)
        return self._thoughts[index]

    def _start(self, chunks: ChatChunks) -> bytes:
        shows_prompt = self._asked.return_token_ids
        return chunks.start(
            prompt_token_ids=(
                self._stream.prompts[0].token_ids if shows_prompt else UNSET
            ),
            usage=self._usage_so_far(),
        )

    def _usage_so_far(self) -> Usage | None:
        if not self._asked.reports_usage_continuously:
            return None
        return self._stream.usage


def _build_answer(
    body: ChatRequest,
    header: StreamHeader,
    stream: MeteredStream,
    texts: TokenTexts,
    completed: Sequence[TextDelta],
) -> ChatCompletion:
    return ChatCompletion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(
            _build_choice(body, whole, texts, splits_reasoning=stream.splits_reasoning)
            for whole in completed
        ),
        usage=stream.usage,
        prompt_logprobs=(
            UNSET
            if body.prompt_logprobs is None
            else build_prompt_logprobs(completed[0].prompt_logprobs, texts)
        ),
        prompt_token_ids=(
            stream.prompts[0].token_ids if body.return_token_ids else UNSET
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
        logprobs=_report(body, whole, texts),
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if body.return_token_ids else UNSET,
    )


def _report(
    body: ChatRequest, delta: TextDelta, texts: TokenTexts
) -> ChatLogprobs | None:
    if not body.logprobs or not delta.logprobs:
        return None
    return build_chat_logprobs(delta.logprobs, texts)
