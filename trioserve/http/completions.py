"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import UNSET
from quart import Response

from ..render import Renderer, TokenizeOptions, run_together
from ..steps import Prompt, SamplingParams, TokenLogprobs
from ..text_engine import TextDelta, TextEngine
from .body import read_request, respond_built
from .chunks import CompletionChunks, StreamHeader, completion_usage_event
from .generation import (
    make_header,
    make_sampling,
    make_token_texts,
    make_tokenize_options,
    open_stream,
    tokenize_bad_words,
)
from .logprobs import (
    TokenTexts,
    build_completion_logprobs,
    build_prompt_logprobs,
    count_entries,
)
from .meter import MeteredStream
from .requests import CompletionRequest
from .responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from .schema import decode_completion
from .scope import ScopedRequest
from .sse import respond_events
from .state import ServerState


async def answer_completion(state: ServerState, request: ScopedRequest) -> Response:
    """Continue one or several prompts, whole or token by token."""
    asked, engine = await read_request(state, request, decode_completion)
    prompts, sampling = await _render(engine, asked)
    # Or megabytes of the body would be kept for as long as the answer takes.
    asked = msgspec.structs.replace(asked, prompt="", prompt_embeds=None)
    stream = await open_stream(state, request, asked, engine, prompts, sampling)
    header = make_header("cmpl", request, asked, engine)
    choices = _Choices(asked, stream, make_token_texts(asked, engine))
    if asked.stream:
        return respond_events(
            request, stream, _CompletionEvents(header, choices), engine.renderer.workers
        )
    wholes = await stream.collect()
    build = partial(_build_answer, header, choices, wholes)
    return await respond_built(engine.renderer.workers, build, count_entries(wholes))


async def _render(
    engine: TextEngine, asked: CompletionRequest
) -> tuple[list[Prompt], SamplingParams]:
    """Render all prompts: first those of vectors, as vLLM orders them."""
    sampling = make_sampling(asked, engine)
    options = make_tokenize_options(asked, sampling, engine)
    engine.renderer.check_sizes(asked.texts, options)
    with engine.admit(asked.num_prompts * sampling.n, asked.num_characters):
        sampling = await tokenize_bad_words(asked, engine, sampling)
        prompts = [
            *await _render_embeds(engine.renderer, asked),
            *await engine.renderer.render_texts(asked.texts, options),
            *await _render_ids(engine.renderer, asked, options),
        ]
    return prompts, sampling


async def _render_embeds(renderer: Renderer, asked: CompletionRequest) -> list[Prompt]:
    embeds = asked.prompt_embeds or ()
    calls = []
    for index, payload in enumerate(embeds):
        param = f"prompt_embeds[{index}]" if len(embeds) > 1 else "prompt_embeds"
        salt = asked.cache_salt or ""
        calls.append(
            partial(renderer.render_embeds, payload, cache_salt=salt, param=param)
        )
    return await run_together(calls)


async def _render_ids(
    renderer: Renderer, asked: CompletionRequest, options: TokenizeOptions
) -> list[Prompt]:
    # One by one: those whose text is echoed wait for a worker.
    return [
        await renderer.render_ids(
            token_ids,
            options,
            with_text=bool(asked.echo),
            skip_special_tokens=asked.skips_special_tokens,
        )
        for token_ids in asked.id_lists
    ]


class _Choices:
    """Says of each choice what was asked: its echo, logprobs and offsets."""

    def __init__(
        self, asked: CompletionRequest, stream: MeteredStream, texts: TokenTexts
    ) -> None:
        self.asked = asked
        self.stream = stream
        self._texts = texts
        self._num_per_prompt = stream.num_sequences // len(stream.prompts)
        # Characters that the tokens reported so far stand for, by choice.
        self._text_offsets: dict[int, int] = {}

    def prompt(self, index: int) -> Prompt:
        return self.stream.prompts[index // self._num_per_prompt]

    def begins(self, delta: TextDelta) -> bool:
        """Whether this is the choice's first delta with a token; true once."""
        if delta.index in self._text_offsets or not delta.token_ids:
            return False
        self._text_offsets[delta.index] = 0
        return True

    def echo(self, index: int) -> str:
        return (self.prompt(index).text or "") if self.asked.echo else ""

    def report(
        self, delta: TextDelta, *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        """Return the logprobs of a delta's tokens, behind its prompt's if echoed."""
        if self.asked.logprobs is None or not delta.logprobs:
            return None
        token_ids: tuple[int, ...] = delta.token_ids
        logprobs: tuple[TokenLogprobs | None, ...] = delta.logprobs
        if with_prompt and self.asked.echo:
            token_ids = self.prompt(delta.index).token_ids + token_ids
            # Nothing predicted the first one.
            logprobs = (None, *delta.prompt_logprobs, *logprobs)
        report = build_completion_logprobs(
            token_ids,
            logprobs,
            self._texts,
            text_offset=self._text_offsets[delta.index],
        )
        self._text_offsets[delta.index] = report.text_offset[-1] + len(
            self._texts.text(token_ids[-1])
        )
        return report

    def build(self, whole: TextDelta) -> CompletionChoice:
        self.begins(whole)
        asked, prompt = self.asked, self.prompt(whole.index)
        shows_ids = asked.return_token_ids
        return CompletionChoice(
            index=whole.index,
            text=self.echo(whole.index) + whole.text,
            logprobs=self.report(whole, with_prompt=True),
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            token_ids=whole.token_ids if shows_ids else UNSET,
            prompt_token_ids=prompt.token_ids if shows_ids else UNSET,
            prompt_logprobs=(
                UNSET
                if asked.prompt_logprobs is None
                else build_prompt_logprobs(whole.prompt_logprobs, self._texts)
            ),
        )


class _CompletionEvents:
    """The EventWriter of completions."""

    def __init__(self, header: StreamHeader, choices: _Choices) -> None:
        self._header = header
        self._choices = choices
        self._chunks: dict[int, CompletionChunks] = {}
        # Prompt logprobs come chunk by chunk, before the first token.
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def write(self, delta: TextDelta) -> bytes:
        choices, asked = self._choices, self._choices.asked
        if delta.prompt_logprobs:
            before = self._prompt_logprobs.get(delta.index, ())
            self._prompt_logprobs[delta.index] = before + delta.prompt_logprobs
        if not delta.token_ids:
            return b""
        is_first = choices.begins(delta)
        delta = msgspec.structs.replace(
            delta, prompt_logprobs=self._prompt_logprobs.pop(delta.index, ())
        )
        text = choices.echo(delta.index) + delta.text if is_first else delta.text
        logprobs = choices.report(delta, with_prompt=is_first)
        shows_ids = asked.return_token_ids
        if not (text or delta.finish_reason or logprobs or shows_ids):
            return b""
        prompt = choices.prompt(delta.index)
        return self._find_chunks(delta.index).text(
            text,
            logprobs=logprobs,
            token_ids=delta.token_ids if shows_ids else None,
            prompt_token_ids=prompt.token_ids if shows_ids and is_first else None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            usage=self._usage_so_far(),
        )

    def end(self) -> bytes:
        if not self._choices.asked.reports_usage:
            return b""
        return completion_usage_event(self._header, self._choices.stream.usage)

    def _find_chunks(self, index: int) -> CompletionChunks:
        # Made when it is needed: there may be thousands of choices.
        if index not in self._chunks:
            self._chunks[index] = CompletionChunks(self._header, index)
        return self._chunks[index]

    def _usage_so_far(self) -> Usage | None:
        if not self._choices.asked.reports_usage_continuously:
            return None
        return self._choices.stream.usage


def _build_answer(
    header: StreamHeader, choices: _Choices, wholes: Sequence[TextDelta]
) -> Completion:
    return Completion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(choices.build(whole) for whole in wholes),
        usage=choices.stream.usage,
    )
