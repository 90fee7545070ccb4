"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from quart import Response

from ...frontend import TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built
from ...render import Renderer, TokenizeOptions, run_together
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..decode.body import forget, read_request
from ..shared.generation import (
    make_header,
    make_tokenize_options,
    naming_sampling,
    open_stream,
    to_sampling,
    tokenize_bad_words,
)
from ..shared.logprobs import TokenTexts, count_entries
from ..shared.sse import respond_events
from .answers import Choices, build_answer
from .body import COMPLETION_BODY
from .events import CompletionEvents
from .request import CompletionRequest


async def answer_completion(state: ServerState, request: ScopedRequest) -> Response:
    """Continue one or several prompts, at once or token by token."""
    body, engine = await read_request(
        state, request, COMPLETION_BODY, state.require_text
    )
    prompts, sampling = await render_completion(request, engine, body)
    # Without its prompts, which may be megabytes long and are not needed any more.
    forget(body, prompt="", suffix=None, prompt_embeds=None)
    meter = await open_stream(state, request, body, engine, prompts, sampling)
    header = make_header("cmpl", request, body, engine)
    texts = TokenTexts(
        engine.renderer.token_bytes,
        as_token_ids=bool(body.return_tokens_as_token_ids),
    )
    choices = Choices(body, meter, texts, engine.renderer)
    if body.stream:
        return respond_events(
            request, meter, CompletionEvents(header, choices), engine.renderer.workers
        )
    completed = await meter.collect()
    build = partial(build_answer, header, choices, completed)
    return await respond_built(engine.renderer.workers, build, count_entries(completed))


async def render_completion(
    request: ScopedRequest, engine: TextEngine, body: CompletionRequest
) -> tuple[list[Prompt], SamplingParams]:
    """Render all prompts. Prompts of embeddings come first, as in vLLM."""
    info = engine.info
    sampling = to_sampling(body, info.default_sampling, max_logprobs=info.max_logprobs)
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
        if body.bad_words:
            sampling = await tokenize_bad_words(body.bad_words, engine, sampling)
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
