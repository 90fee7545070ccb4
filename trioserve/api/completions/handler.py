"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
from msgspec import UNSET
from quart import Response

from ...errors import TrioserveError
from ...frontend import TextEngine
from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import Usage
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built
from ...render import Renderer, TextOffsets, TokenizeOptions, run_together
from ...types.output import TextDelta, TokenLogprobs
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..decode.body import read_request
from ..shared.answers import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
)
from ..shared.chunks import (
    DONE,
    CompletionChunks,
    StreamHeader,
    error_event,
    usage_event,
)
from ..shared.generation_steps import (
    make_header,
    make_sampling,
    make_token_texts,
    make_tokenize_options,
    open_stream,
    tokenize_bad_words,
)
from ..shared.logprobs import (
    TokenTexts,
    build_completion_logprobs,
    build_prompt_logprobs,
    count_entries,
)
from ..shared.sampling import naming_sampling
from ..shared.sse import respond_events
from .body import COMPLETION_BODY
from .request import CompletionRequest


async def answer_completion(state: ServerState, request: ScopedRequest) -> Response:
    """Continue one or several prompts, at once or token by token."""
    body, engine = await read_request(state, request, COMPLETION_BODY)
    prompts, sampling = await _render(request, engine, body)
    # Without its prompts, which may be megabytes long and are not needed any more.
    body.forget(prompt="", suffix=None, prompt_embeds=None)
    meter = await open_stream(state, request, body, engine, prompts, sampling)
    header = make_header("cmpl", request, body, engine)
    texts = make_token_texts(body, engine)
    choices = _Choices(body, meter, texts, engine.renderer)
    if body.stream:
        return respond_events(
            request, meter, _CompletionEvents(header, choices), engine.renderer.workers
        )
    completed = await meter.collect()
    build = partial(_build_answer, header, choices, completed)
    return await respond_built(engine.renderer.workers, build, count_entries(completed))


async def _render(
    request: ScopedRequest, engine: TextEngine, body: CompletionRequest
) -> tuple[list[Prompt], SamplingParams]:
    """Render all prompts. Those of embeddings come first, as in vLLM."""
    sampling = make_sampling(body, engine)
    options = make_tokenize_options(body, sampling, engine)
    engine.renderer.check_sizes(body.texts, options)
    limits = request.time_limit.limit_stream(body.max_queue_seconds)
    with engine.admit(
        body.num_prompts,
        body.num_characters,
        sampling,
        limits,
        request.ticket.use.key.client,
        num_ids=sum(map(len, body.id_lists)),
    ) as prompts:
        sampling = await tokenize_bad_words(body, engine, sampling)
        prompts += [
            *await _render_embeds(engine.renderer, body),
            *await engine.renderer.render_texts(
                _fill_in(engine.renderer, body), options
            ),
            *await _render_ids(engine.renderer, body, options),
        ]
    if body.max_tokens is None:
        sampling = _fit_default(body, engine, prompts, sampling)
    return prompts, sampling


def _fit_default(
    body: CompletionRequest,
    engine: TextEngine,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
) -> SamplingParams:
    """Limit the default of max_tokens to the tokens that the longest prompt leaves."""
    room = engine.info.max_model_len - max(len(prompt.token_ids) for prompt in prompts)
    if (sampling.max_tokens or 1) <= room:
        return sampling
    with naming_sampling(body):
        return replace(sampling, max_tokens=room)


def _fill_in(renderer: Renderer, body: CompletionRequest) -> Sequence[str]:
    """Return the texts of the prompts, with the suffix if there is one."""
    if not body.suffix:
        return body.texts
    return [renderer.fill_in(text, body.suffix) for text in body.texts]


async def _render_embeds(renderer: Renderer, body: CompletionRequest) -> list[Prompt]:
    embeds = body.prompt_embeds or ()
    calls = []
    for index, payload in enumerate(embeds):
        param = f"prompt_embeds[{index}]" if len(embeds) > 1 else "prompt_embeds"
        salt = body.cache_salt or ""
        calls.append(
            partial(renderer.render_embeds, payload, cache_salt=salt, param=param)
        )
    return await run_together(calls)


async def _render_ids(
    renderer: Renderer, body: CompletionRequest, options: TokenizeOptions
) -> list[Prompt]:
    # One by one, because a worker has to decode the text that is echoed.
    return [
        await renderer.render_ids(
            token_ids,
            options,
            with_text=bool(body.echo),
            skip_special_tokens=body.skips_special_tokens,
        )
        for token_ids in body.id_lists
    ]


class _Choices:
    """Builds the fields of choices: their echo, log probabilities and text offsets."""

    def __init__(
        self,
        body: CompletionRequest,
        meter: StreamMeter,
        texts: TokenTexts,
        renderer: Renderer,
    ) -> None:
        self.body = body
        self.meter = meter
        self._texts = texts
        self._renderer = renderer
        self._num_per_prompt = meter.stream.num_sequences // len(meter.prompts)
        self._begun: set[int] = set()
        # By choice, if it has log probabilities.
        self._offsets: dict[int, TextOffsets] = {}

    def prompt(self, index: int) -> Prompt:
        return self.meter.prompts[index // self._num_per_prompt]

    def begins(self, delta: TextDelta) -> bool:
        """Whether this is the choice's first delta; true once."""
        if delta.index in self._begun:
            return False
        self._begun.add(delta.index)
        return True

    def echo(self, index: int) -> str:
        return (self.prompt(index).text or "") if self.body.echo else ""

    def list_ids(self, delta: TextDelta, *, with_prompt: bool) -> tuple[int, ...]:
        """Return the token ids of a delta, after those of an echoed prompt."""
        if with_prompt and self.body.echo:
            return self.prompt(delta.index).token_ids + delta.token_ids
        return delta.token_ids

    def report(
        self, delta: TextDelta, *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        """Return the log probabilities of a delta, after those of an echoed prompt."""
        if self.body.logprobs is None:
            return None
        token_ids = self.list_ids(delta, with_prompt=with_prompt)
        offsets = self._find_offsets(delta.index).push(delta)
        logprobs: tuple[TokenLogprobs | None, ...] = delta.logprobs
        if with_prompt and self.body.echo:
            prompt = self.prompt(delta.index)
            offsets = self._renderer.locate_tokens(prompt) + offsets
            # Nothing predicted the prompt's first token.
            logprobs = (None, *delta.prompt_logprobs, *logprobs)
        # A deadline may have come before all of a prompt was computed.
        if not logprobs or len(logprobs) < len(token_ids):
            return None
        return build_completion_logprobs(token_ids, logprobs, self._texts, offsets)

    def _find_offsets(self, index: int) -> TextOffsets:
        if index not in self._offsets:
            self._offsets[index] = self._renderer.open_offsets(
                self.prompt(index),
                skip_special_tokens=self.body.skips_special_tokens,
                begin=len(self.echo(index)),
            )
        return self._offsets[index]

    def build(self, whole: TextDelta) -> CompletionChoice:
        body, prompt = self.body, self.prompt(whole.index)
        shows_ids = body.return_token_ids
        return CompletionChoice(
            index=whole.index,
            text=self.echo(whole.index) + whole.text,
            logprobs=self.report(whole, with_prompt=True),
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            token_ids=self.list_ids(whole, with_prompt=True) if shows_ids else UNSET,
            prompt_token_ids=prompt.token_ids if shows_ids else UNSET,
            prompt_logprobs=(
                None
                if body.prompt_logprobs is None
                else build_prompt_logprobs(whole.prompt_logprobs, self._texts)
            ),
        )


class _CompletionEvents:
    """Writes the events of a streamed completion."""

    def __init__(self, header: StreamHeader, choices: _Choices) -> None:
        self._header = header
        self._choices = choices
        self._chunks: dict[int, CompletionChunks] = {}
        # Log probabilities of prompts come in parts, before the first token.
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def write(self, delta: TextDelta) -> bytes:
        choices, body = self._choices, self._choices.body
        if delta.prompt_logprobs:
            before = self._prompt_logprobs.get(delta.index, ())
            self._prompt_logprobs[delta.index] = before + delta.prompt_logprobs
        if not (delta.token_ids or delta.finish_reason):
            return b""
        is_first = choices.begins(delta)
        delta = msgspec.structs.replace(
            delta, prompt_logprobs=self._prompt_logprobs.pop(delta.index, ())
        )
        text = choices.echo(delta.index) + delta.text if is_first else delta.text
        logprobs = choices.report(delta, with_prompt=is_first)
        shows_ids = body.return_token_ids
        if not (text or delta.finish_reason or logprobs or shows_ids):
            return b""
        ids = choices.list_ids(delta, with_prompt=is_first) if shows_ids else None
        prompt = choices.prompt(delta.index)
        return self._find_chunks(delta.index).text(
            text,
            logprobs=logprobs,
            token_ids=ids,
            prompt_token_ids=prompt.token_ids if shows_ids and is_first else None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            usage=self._current_usage(),
        )

    def end(self) -> bytes:
        if not self._choices.body.reports_usage:
            return DONE
        meter = self._choices.meter
        metrics = meter.metrics if self._choices.body.return_metrics else UNSET
        return usage_event(CompletionChunk, self._header, meter.usage, metrics) + DONE

    def fail(self, error: TrioserveError) -> bytes:
        return error_event(error) + DONE

    def _find_chunks(self, index: int) -> CompletionChunks:
        # Each is made when it is needed, because there may be thousands of choices.
        if index not in self._chunks:
            self._chunks[index] = CompletionChunks(self._header, index)
        return self._chunks[index]

    def _current_usage(self) -> Usage | None:
        if not self._choices.body.reports_usage_continuously:
            return None
        return self._choices.meter.usage


def _build_answer(
    header: StreamHeader, choices: _Choices, completed: Sequence[TextDelta]
) -> Completion:
    return Completion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(choices.build(whole) for whole in completed),
        usage=choices.meter.usage,
        metrics=choices.meter.metrics if choices.body.return_metrics else UNSET,
    )
