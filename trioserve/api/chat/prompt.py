"""From a chat to its prompt."""

from __future__ import annotations

from ...frontend import TextEngine
from ...http.scope import ScopedRequest
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from ..shared.generation_steps import (
    count_characters,
    make_sampling,
    make_tokenize_options,
    tokenize_bad_words,
)
from ..shared.message_mappings import LazyMappings, to_chat_options
from .request import ChatRequest


async def render_chat(
    request: ScopedRequest,
    engine: TextEngine,
    body: ChatRequest,
    messages: LazyMappings,
) -> tuple[Prompt, SamplingParams]:
    """Admit a chat, and render its prompt.

    Args:
      messages: of the chat; the messages of `body` are not read.
    """
    sampling = make_sampling(body, engine)
    num_characters = await count_characters(engine.renderer.workers, messages)
    limits = request.time_limit.limit_stream(body.max_queue_seconds)
    with engine.admit(
        1, num_characters, sampling, limits, request.ticket.use.key.client
    ) as prompts:
        sampling = await tokenize_bad_words(body, engine, sampling)
        prompt = await engine.renderer.render_chat(
            messages,
            to_chat_options(body),
            make_tokenize_options(body, sampling, engine),
        )
        prompts.append(prompt)
    return prompt, sampling
