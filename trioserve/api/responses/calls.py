"""From the request of a response to a prompt: the steps before generation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
import time
from typing import TypeVar

import msgspec
from msgspec import UNSET
import trio

from ...errors import InvalidParameter, NotSupported, ResponseNotFound, ResponseTooLarge
from ...frontend import TextEngine
from ...http.keys.keys import Key, name_key
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.streams.event_log import EventLog
from ...http.streams.response_store import ResponseStore, StoredResponse, StoredTurn
from ...http.wire.error_body import encode, make_request_id
from ...render import RendererWorkers
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..chat.handler import render_chat
from ..chat.request import ChatRequest
from ..decode.body import forget
from ..decode.values import has_value
from ..shared.logprobs import TokenTexts
from ..shared.message_mappings import MessageMappings
from .answers import ReasoningOptions, ResponseObject, TextOptions
from .items import decode_items, encode_items
from .messages import naming_fields, to_messages
from .output_items import ID_PREFIXES
from .request import ResponseRequest, TextConfig, TextFormat, to_chat
from .writer import ResponseWriter

T = TypeVar("T")

# Reading, converting and encoding items takes about a millisecond for so many bytes.
_SMALL_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall:
    """A request that is ready to be generated.

    Attributes:
      chat: the chat that answers it, without its messages.
      naming: lets errors of the chat name the fields of the response.
      writer: writes the response.
      earlier: the turns of the previous responses.
      input: the stored form of the request's own items; empty if it is not stored.
      owner: the name of the client's key; None without keys.
    """

    engine: TextEngine
    chat: ChatRequest
    prompt: Prompt
    sampling: SamplingParams
    naming: Callable[[], AbstractContextManager[None]]
    writer: ResponseWriter
    earlier: tuple[StoredTurn, ...]
    input: bytes
    owner: str | None

    def to_stored(self, log: EventLog | None = None) -> StoredResponse:
        """Return the response as it is stored when it has ended.

        Args:
          log: the events, if clients can follow them.
        """
        response = self.writer.response
        return StoredResponse(
            id=response.id,
            owner=self.owner,
            earlier=self.earlier,
            turn=StoredTurn(input=self.input, output=encode(response.output)),
            content=encode(response),
            can_continue=response.status in ("completed", "incomplete"),
            is_background=response.background,
            log=log,
        )


async def prepare(
    state: ServerState,
    request: ScopedRequest,
    body: ResponseRequest,
    engine: TextEngine,
) -> ResponseCall:
    """Find the conversation of a request and render it.

    Raises:
      RequestError: the previous response is not stored, or the conversation is wrong, or too
        large for the store although the client wants that it is stored.
      Unavailable: too much waits for the engine or the renderer.
    """
    stores = _check_store(state, body)
    previous = _find_previous(state, body, request.live.key)
    earlier = () if previous is None else previous.turns
    num_bytes = request.body.num_bytes + sum(turn.num_bytes for turn in earlier)
    conversation = await run_reading(
        engine.renderer.workers, partial(_read, body, earlier, stores), num_bytes
    )
    stores = stores and _check_size(state.responses, body, earlier, conversation.input)
    chat = conversation.chat
    with conversation.naming():
        prompt, sampling = await render_chat(
            request, engine, chat, MessageMappings(chat.messages)
        )
    # They may be megabytes long and are not needed any more.
    forget(chat, messages=())
    response = _begin_response(body, engine, sampling, stores=stores)
    return ResponseCall(
        engine=engine,
        chat=chat,
        prompt=prompt,
        sampling=sampling,
        naming=conversation.naming,
        writer=ResponseWriter(
            response,
            TokenTexts(engine.renderer.token_bytes) if body.shows_logprobs else None,
            make_id=make_request_id,
            tell_time=time.time,
        ),
        earlier=earlier,
        input=conversation.input,
        owner=name_key(request.live.key),
    )


def _check_store(state: ServerState, body: ResponseRequest) -> bool:
    """Return whether the response is stored; OpenAI's default is that it is."""
    if state.responses.keeps_responses:
        return body.store is not False
    for name in ("store", "background"):
        if getattr(body, name):
            raise NotSupported(name, "it stores no responses (--response-max-age 0)")
    return False


def _check_size(
    store: ResponseStore,
    body: ResponseRequest,
    earlier: tuple[StoredTurn, ...],
    input: bytes,
) -> bool:
    """Return whether the store is large enough for a conversation.

    Raises:
      ResponseTooLarge: it is not, and the client has said that it wants it stored.
    """
    response = StoredResponse(
        id="", earlier=earlier, turn=StoredTurn(input=input, output=b"[]")
    )
    try:
        store.check_size(response, param="background" if body.background else "store")
    except ResponseTooLarge:
        if body.store or body.background:
            raise
        return False
    return True


def _find_previous(
    state: ServerState, body: ResponseRequest, asker: Key | None
) -> StoredResponse | None:
    if body.previous_response_id is None:
        return None
    try:
        previous = state.responses.find(
            body.previous_response_id, trio.current_time(), asker
        )
    except ResponseNotFound as error:
        # OpenAI answers 400, because the path was found.
        raise InvalidParameter("previous_response_id", str(error)) from None
    if not previous.can_continue:
        reason = "is still running" if previous.is_running else "has no answer"
        raise InvalidParameter("previous_response_id", f"the response {reason}")
    return previous


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversation:
    chat: ChatRequest
    naming: Callable[[], AbstractContextManager[None]]
    input: bytes


def _read(
    body: ResponseRequest, earlier: tuple[StoredTurn, ...], stores: bool
) -> _Conversation:
    history = [
        item
        for turn in earlier
        for part in (turn.input, turn.output)
        for item in decode_items(part)
    ]
    messages, sources = to_messages([*history, *body.items], body.instructions)
    naming = partial(naming_fields, sources, len(history))
    with naming():
        chat = to_chat(body, messages)
    return _Conversation(
        chat=chat,
        naming=naming,
        input=encode_items(body.items, _make_item_id) if stores else b"[]",
    )


def _make_item_id(kind: str) -> str:
    return f"{ID_PREFIXES[kind]}_{make_request_id()}"


async def run_reading(
    workers: RendererWorkers, work: Callable[[], T], num_bytes: int
) -> T:
    """Read items, in a renderer worker if it would block the event loop for long.

    Args:
      num_bytes: the length of the items.
    """
    return work() if num_bytes <= _SMALL_BYTES else await workers.run(work)


def _begin_response(
    body: ResponseRequest,
    engine: TextEngine,
    sampling: SamplingParams,
    *,
    stores: bool,
) -> ResponseObject:
    is_background = bool(body.background)
    reasoning = body.reasoning
    return ResponseObject(
        # Never the client's own request id: who knows the id can read the response.
        id=f"resp_{make_request_id()}",
        created_at=int(time.time()),
        status="queued" if is_background else "in_progress",
        background=is_background,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=engine.info.name,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=(
            ReasoningOptions()
            if reasoning is None
            else ReasoningOptions(effort=reasoning.effort, summary=reasoning.summary)
        ),
        safety_identifier=body.safety_identifier,
        store=stores,
        temperature=sampling.temperature,
        text=_describe_text(body.text),
        tool_choice=msgspec.to_builtins(body.tool_choice or "auto"),
        tools=body.tools or (),
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _describe_text(text: TextConfig | None) -> TextOptions:
    """Repeat the options of the text as the client sent them."""
    if text is None:
        return TextOptions(format={"type": "text"})
    wanted = text.format or TextFormat()
    form: dict[str, object] = {
        name: value
        for name in ("type", "name", "description", "strict")
        if (value := getattr(wanted, name)) is not None
    }
    if has_value(wanted.schema):
        form["schema"] = wanted.schema
    verbosity = UNSET if text.verbosity is None else text.verbosity
    return TextOptions(format=form, verbosity=verbosity)
