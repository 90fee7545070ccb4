"""POST /v1/messages and POST /v1/messages/count_tokens: chats by Anthropic's API."""

from __future__ import annotations

from dataclasses import dataclass

from quart import Response

from ...errors import TrioserveError
from ...frontend import TextEngine
from ...http.record.stream_meter import StreamMeter
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_json
from ...render import TokenizeOptions
from ...types.output import TextDelta
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..chat.handler import render_chat
from ..chat.request import ChatRequest
from ..decode.body import read_request
from ..shared.generation import count_characters, fit_max_tokens, open_stream
from ..shared.message_mappings import to_chat_options
from ..shared.sse import respond_events
from .answers import (
    AnthropicError,
    AnthropicMessage,
    AnthropicUsage,
    Ending,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    StopReason,
    TokenCount,
    write_event,
)
from .blocks import BlockWriter, ContentCollector
from .body import COUNT_TOKENS_BODY, MESSAGES_BODY
from .chat import explain_fields, to_chat_request
from .requests import ConversationRequest
from .turn_mappings import TurnMappings


async def answer_messages(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a conversation, at once or block by block."""
    answer = await _open_answer(state, request)
    if not answer.chat.stream:
        return respond_json(await _collect(answer))
    events = _MessageEvents(answer, str(request.id))
    workers = answer.engine.renderer.workers
    return respond_events(
        request, answer.meter, events, workers, comment=write_event(Ping())
    )


async def answer_count_tokens(state: ServerState, request: ScopedRequest) -> Response:
    """Count the tokens of a conversation."""
    request.model.purpose = "read"
    body, engine = await read_request(
        state, request, COUNT_TOKENS_BODY, state.require_text
    )
    turns = TurnMappings(body.messages, body.system)
    num_characters = await count_characters(engine.renderer.workers, turns)
    room, client = engine.renderer.room, request.live.client
    with explain_fields(turns), room.enter(num_characters, client):
        chat = _make_chat(body, engine)
        prompt = await engine.renderer.render_chat(
            turns,
            to_chat_options(chat),
            TokenizeOptions(add_special_tokens=chat.adds_special_tokens),
        )
    return respond_json(TokenCount(input_tokens=len(prompt.token_ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An answer that is being generated.

    Attributes:
      chat: the request as a chat, without its messages.
      fills_context: the answer ends where the model's context does, because the client
        allows more tokens.
    """

    id: str
    chat: ChatRequest
    engine: TextEngine
    meter: StreamMeter
    fills_context: bool

    @property
    def usage(self) -> AnthropicUsage:
        """The tokens so far."""
        return AnthropicUsage.of(self.meter.usage)

    def make_blocks(self) -> BlockWriter:
        return BlockWriter(self.id, shows_thinking=self.chat.includes_reasoning)

    def explain_end(self, last: TextDelta, *, has_calls: bool) -> Ending:
        """Return the reason for the end of the answer, from its last delta."""
        if isinstance(last.stop_reason, str):
            return Ending(stop_reason="stop_sequence", stop_sequence=last.stop_reason)
        reason: StopReason
        if last.finish_reason == "stop":
            reason = "tool_use" if has_calls else "end_turn"
        elif last.finish_reason in ("repetition", "deadline"):
            reason = last.finish_reason
        else:
            reason = "max_tokens"
            if self.fills_context:
                reason = "model_context_window_exceeded"
        return Ending(stop_reason=reason)


async def _open_answer(state: ServerState, request: ScopedRequest) -> _Answer:
    # Nothing refers to the messages behind this call. They may be megabytes long.
    chat, engine, prompt, sampling = await _read(state, request)
    fitted = fit_max_tokens(engine, prompt, sampling)
    with explain_fields():
        meter = await open_stream(state, request, chat, engine, [prompt], fitted)
    return _Answer(
        id=f"msg_{request.id}",
        chat=chat,
        engine=engine,
        meter=meter,
        fills_context=fitted is not sampling,
    )


async def _read(
    state: ServerState, request: ScopedRequest
) -> tuple[ChatRequest, TextEngine, Prompt, SamplingParams]:
    """Read and render a request."""
    body, engine = await read_request(state, request, MESSAGES_BODY, state.require_text)
    turns = TurnMappings(body.messages, body.system)
    with explain_fields(turns):
        chat = _make_chat(body, engine)
        prompt, sampling = await render_chat(request, engine, chat, turns)
    return chat, engine, prompt, sampling


def _make_chat(body: ConversationRequest, engine: TextEngine) -> ChatRequest:
    splits_reasoning = engine.renderer.reasoning is not None
    return to_chat_request(body, splits_reasoning=splits_reasoning)


async def _collect(answer: _Answer) -> AnthropicMessage:
    """Return the whole answer."""
    meter, blocks, content = answer.meter, answer.make_blocks(), ContentCollector()
    last = TextDelta()
    async for last in meter.stream:
        meter.count(last)
        content.add(blocks.push(last))
    meter.finish()
    end = answer.explain_end(last, has_calls=blocks.has_calls)
    return AnthropicMessage(
        id=answer.id,
        model=answer.engine.info.name,
        content=content.build(),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=answer.usage,
    )


class _MessageEvents:
    """Writes the events of a streamed answer."""

    def __init__(self, answer: _Answer, request_id: str) -> None:
        self._answer = answer
        self._request_id = request_id
        self._blocks = answer.make_blocks()
        self._has_started = False

    def write(self, delta: TextDelta) -> bytes:
        # The first events come with the first token, as in chats.
        events = b"" if self._has_started else self._start()
        for event in self._blocks.push(delta):
            events += write_event(event)
        if delta.finish_reason is not None:
            has_calls = self._blocks.has_calls
            end = self._answer.explain_end(delta, has_calls=has_calls)
            events += write_event(MessageDelta(end, self._answer.usage))
        return events

    def end(self) -> bytes:
        return write_event(MessageStop())

    def fail(self, error: TrioserveError) -> bytes:
        return write_event(AnthropicError.of(error, self._request_id))

    def _start(self) -> bytes:
        self._has_started = True
        answer = self._answer
        message = AnthropicMessage(
            id=answer.id, model=answer.engine.info.name, usage=answer.usage
        )
        return write_event(MessageStart(message)) + write_event(Ping())
