"""From the fields of a request to SamplingParams and to a stream."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import fields, replace
import time
from typing import Any, Final

from msgspec import UNSET
import trio

from ...errors import (
    ContextLengthExceeded,
    InvalidParameter,
    RequestError,
    list_some,
)
from ...frontend import StreamLimits, TextEngine
from ...http.keys.key_use import Ticket
from ...http.record.stream_meter import StreamMeter, StreamTimes
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...render import RendererWorkers, TokenizeOptions
from ...types.prompt import Prompt
from ...types.repetition import RepetitionDetection
from ...types.sampling import DEFAULT_MAX_LOGPROBS, SamplingParams
from .chunks import StreamHeader
from .message_mappings import LazyMappings
from .requests import GenerationRequest

# Each takes half a microsecond to measure.
_FEW_PARTS: Final = 1024

# The fields that have another form in requests than in SamplingParams.
_CONVERTED: Final = {
    *("bad_words", "logit_bias", "logits_processors", "logprob_token_ids"),
    "repetition_detection",
}
_SAME: Final = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name in GenerationRequest.__struct_fields__
    and field.name not in _CONVERTED
)


def make_header(
    prefix: str, request: ScopedRequest, body: GenerationRequest, engine: TextEngine
) -> StreamHeader:
    """Make the fields that all chunks of an answer share."""
    return StreamHeader(
        id=f"{prefix}-{request.id.take(body.request_id)}",
        created=int(time.time()),
        model=engine.info.name,
        system_fingerprint=engine.info.fingerprint,
        no_usage=None if body.reports_usage else UNSET,
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


async def tokenize_bad_words(
    words: tuple[str, ...], engine: TextEngine, sampling: SamplingParams
) -> SamplingParams:
    """Add the token ids of the words that the model must not write.

    Raises:
      InvalidParameter: a word is too long, or has no token.
    """
    rendered = await engine.renderer.render_bad_words(words)
    return replace(sampling, bad_words=rendered)


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
    request.sampling = sampling
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


def to_sampling(
    request: GenerationRequest,
    defaults: Iterable[tuple[str, float]] = (),
    *,
    max_logprobs: int = DEFAULT_MAX_LOGPROBS,
) -> SamplingParams:
    """Make the SamplingParams of a request.

    Args:
      defaults: fields of SamplingParams from the model's generation_config. They apply
        where the client sent no value.
      max_logprobs: see ModelInfo.

    Raises:
      InvalidParameter: a number is out of its range; `param` is the client's name for it.
    """
    values: dict[str, Any] = dict(defaults)
    for name in _SAME:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    # A token is reported once, however often it was sent.
    if request.logprob_token_ids:
        values["logprob_token_ids"] = tuple(dict.fromkeys(request.logprob_token_ids))
    if (rule := request.repetition_detection) is not None:
        values["repetition_detection"] = RepetitionDetection(
            max_pattern_size=rule.max_pattern_size or 0,
            min_pattern_size=rule.min_pattern_size or 0,
            min_count=rule.min_count or 0,
        )
    if request.logit_bias:
        values["logit_bias"] = _parse_logit_bias(request.logit_bias)
    if request.logits_processors:
        values["logits_processors"] = tuple(
            (name, arguments or {})
            for name, arguments in request.logits_processors.items()
        )
    request.take_sampling(values)
    with naming_sampling(request):
        sampling = SamplingParams(**values)
        request.check_sampling(sampling)
        sampling.check_logprobs(max_logprobs)
    return sampling


@contextmanager
def naming_sampling(request: GenerationRequest) -> Iterator[None]:
    """Let errors of SamplingParams name the fields of the request."""
    try:
        yield
    except ContextLengthExceeded as error:
        error.param = request.name_sampling(error.param or "")
        raise
    except InvalidParameter as error:
        name = error.param or ""
        sent_as = request.name_sampling(name)
        if sent_as == name:
            raise
        reason = str(error).removeprefix(f"{name}: ")
        raise InvalidParameter(sent_as, reason) from None


@contextmanager
def renaming(find_name: Callable[[str], str]) -> Iterator[None]:
    """Let errors of a chat name the fields of the request that became the chat.

    Args:
      find_name: returns the client's name of a chat's field.
    """
    try:
        yield
    except RequestError as error:
        name = error.param or ""
        sent_as = find_name(name)
        if sent_as == name:
            raise
        message = str(error)
        # Not all messages begin with the name: a prompt is too long for the model.
        if message.startswith(name):
            message = f"{sent_as}{message.removeprefix(name)}"
        raise RequestError(message, param=sent_as) from None


def fit_max_tokens(
    engine: TextEngine, prompt: Prompt, sampling: SamplingParams
) -> SamplingParams:
    """Limit max_tokens to the tokens that the prompt leaves.

    Chats refuse a larger max_tokens. Clients of some other APIs send the most that any model
    can write.
    """
    room = engine.info.max_model_len - len(prompt.token_ids)
    # The engine refuses a prompt that leaves no token.
    if room < 1 or sampling.max_tokens is None or sampling.max_tokens <= room:
        return sampling
    return replace(sampling, max_tokens=room)


def _parse_logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    # int() would also accept signs, spaces, underscores and other alphabets' digits.
    wrong = [
        key for key in bias if not (key.isascii() and key.isdigit() and len(key) <= 10)
    ]
    if wrong:
        verb = "are not token ids" if len(wrong) > 1 else "is not a token id"
        raise InvalidParameter("logit_bias", f"{list_some(wrong)} {verb}")
    return tuple((int(key), value) for key, value in bias.items())
