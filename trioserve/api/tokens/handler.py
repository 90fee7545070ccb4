"""POST /tokenize, POST /detokenize and GET /tokenizer_info."""

from __future__ import annotations

from functools import partial
from typing import Final

from quart import Response

from ...errors import EndpointOff
from ...frontend import PoolingEngine, TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_built, respond_json
from ...render import TokenizeOptions
from ...types.prompt import Prompt
from ..decode.body import read_request
from ..shared.generation import count_characters
from ..shared.message_mappings import MessageMappings, to_chat_options
from .answers import Detokenized, Tokenized, TokenizerInfo
from .requests import DETOKENIZE_BODY, TOKENIZE_BODY, TokenizeRequest

_NAMED_TOKENS: Final = tuple(
    name for name in TokenizerInfo.__struct_fields__ if name.endswith("_token")
)


async def answer_tokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Convert a text or a conversation to token ids."""
    request.model.purpose = "read"
    body, engine = await read_request(
        state, request, TOKENIZE_BODY, state.require_engine
    )
    messages = MessageMappings(body.messages or ())
    num_characters = await count_characters(engine.renderer.workers, messages)
    num_characters += len(body.prompt or "")
    with engine.renderer.room.enter(num_characters, request.live.client):
        prompt = await _render(engine, body, messages)
    build = partial(_build_tokenized, engine, body, prompt)
    return await respond_built(engine.renderer.workers, build, len(prompt.token_ids))


async def answer_detokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Convert token ids to text."""
    request.model.purpose = "read"
    body, engine = await read_request(
        state, request, DETOKENIZE_BODY, state.require_engine
    )
    with engine.renderer.room.enter(len(body.tokens), request.live.client):
        text = await engine.renderer.detokenize(body.tokens)
    return respond_json(Detokenized(prompt=text))


async def answer_tokenizer_info(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the tokenizer, if an option allows it."""
    if not state.config.enable_tokenizer_info_endpoint:
        raise EndpointOff("--enable-tokenizer-info-endpoint")
    request.model.purpose = "read"
    engine = await state.require_engine(request.model)
    tokenizer = engine.renderer.model_tokenizer
    named = tokenizer.special_tokens
    return respond_json(
        TokenizerInfo(
            tokenizer_class=tokenizer.class_name,
            **{name: named[name] for name in _NAMED_TOKENS if name in named},
            extra_special_tokens=tokenizer.extra_special_tokens,
            padding_side=tokenizer.padding_side,
            model_max_length=engine.info.max_model_len,
            chat_template=tokenizer.chat_templates.get("default"),
        )
    )


def _build_tokenized(
    engine: TextEngine | PoolingEngine, body: TokenizeRequest, prompt: Prompt
) -> Tokenized:
    return Tokenized(
        count=len(prompt.token_ids),
        max_model_len=engine.info.max_model_len,
        tokens=prompt.token_ids,
        token_strs=(
            tuple(map(engine.renderer.token_text, prompt.token_ids))
            if body.return_token_strs
            else None
        ),
    )


async def _render(
    engine: TextEngine | PoolingEngine,
    body: TokenizeRequest,
    messages: MessageMappings,
) -> Prompt:
    options = TokenizeOptions(add_special_tokens=body.adds_special_tokens)
    if body.prompt is not None:
        return await engine.renderer.render_text(body.prompt, options)
    return await engine.renderer.render_chat(messages, to_chat_options(body), options)
