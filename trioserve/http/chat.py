"""POST /v1/chat/completions."""

from __future__ import annotations

from msgspec import UNSET
from quart import Response

from ..text_engine import TextDelta
from .body import log_unknown_fields, read_json_body, respond_json
from .chunks import ChatChunks, StreamHeader, chat_usage_event
from .generation import make_header, make_token_texts, open_stream
from .logprobs import TokenTexts, build_chat_logprobs, build_prompt_logprobs
from .meter import MeteredStream
from .requests import ChatRequest
from .responses import ChatChoice, ChatCompletion, ChatLogprobs, ChatMessage, Usage
from .schema import decode_chat, to_messages, to_sampling
from .scope import ScopedRequest
from .sse import respond_events
from .state import ServerState


async def answer_chat(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, whole or token by token."""
    body = await read_json_body(request)
    asked = decode_chat(body)
    log_unknown_fields(body, asked)
    engine = state.require_engine(asked.model)
    sampling = to_sampling(asked, dict(engine.info.default_sampling))
    prompt = await engine.renderer.render_chat(
        to_messages(asked.messages),
        add_generation_prompt=asked.adds_generation_prompt,
        continue_final_message=bool(asked.continue_final_message),
        add_special_tokens=asked.adds_special_tokens,
        chat_template_kwargs=asked.chat_template_kwargs,
        cache_salt=asked.cache_salt or "",
    )
    stream = await open_stream(state, request, asked, engine, [prompt], sampling)
    header = make_header("chatcmpl", request, asked, engine)
    texts = make_token_texts(asked, engine)
    if asked.stream:
        return respond_events(stream, _ChatEvents(asked, header, stream, texts))
    return respond_json(await _build_answer(asked, header, stream, texts))


class _ChatEvents:
    """The EventWriter of a chat."""

    def __init__(
        self,
        asked: ChatRequest,
        header: StreamHeader,
        stream: MeteredStream,
        texts: TokenTexts,
    ) -> None:
        self._asked = asked
        self._header = header
        self._stream = stream
        self._texts = texts
        self._chunks: dict[int, ChatChunks] = {}

    def write(self, delta: TextDelta) -> bytes:
        # The role goes out with the first token, not before it: whoever measures the
        # time to the first chunk measures the time to the first token.
        events = b""
        if delta.index not in self._chunks:
            self._chunks[delta.index] = ChatChunks(self._header, delta.index)
            events = self._start(self._chunks[delta.index])
        logprobs = _report(self._asked, delta, self._texts)
        token_ids = delta.token_ids if self._asked.return_token_ids else None
        # A delta may be all held back, as the beginning of a stop string is.
        if delta.text or delta.finish_reason or logprobs or token_ids:
            events += self._chunks[delta.index].text(
                delta.text,
                logprobs=logprobs,
                token_ids=token_ids,
                finish_reason=delta.finish_reason,
                stop_reason=delta.stop_reason,
                usage=self._usage_so_far(),
            )
        return events

    def end(self) -> bytes:
        if not self._asked.reports_usage:
            return b""
        return chat_usage_event(self._header, self._stream.usage)

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


async def _build_answer(
    asked: ChatRequest, header: StreamHeader, stream: MeteredStream, texts: TokenTexts
) -> ChatCompletion:
    wholes = await stream.collect()
    return ChatCompletion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(_build_choice(asked, whole, texts) for whole in wholes),
        usage=stream.usage,
        prompt_logprobs=(
            UNSET
            if asked.prompt_logprobs is None
            else build_prompt_logprobs(wholes[0].prompt_logprobs, texts)
        ),
        prompt_token_ids=(
            stream.prompts[0].token_ids if asked.return_token_ids else UNSET
        ),
    )


def _build_choice(
    asked: ChatRequest, whole: TextDelta, texts: TokenTexts
) -> ChatChoice:
    return ChatChoice(
        index=whole.index,
        message=ChatMessage(content=whole.text),
        logprobs=_report(asked, whole, texts),
        finish_reason=whole.finish_reason,
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if asked.return_token_ids else UNSET,
    )


def _report(
    asked: ChatRequest, delta: TextDelta, texts: TokenTexts
) -> ChatLogprobs | None:
    if not asked.logprobs or not delta.logprobs:
        return None
    return build_chat_logprobs(delta.logprobs, texts)
