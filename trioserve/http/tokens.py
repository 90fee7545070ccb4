"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from functools import partial

from quart import Response

from ..pooling_engine import PoolingEngine
from ..render import TokenizeOptions
from ..steps import Prompt
from ..text_engine import TextEngine
from .body import read_any_request, respond_built, respond_json
from .requests import TokenizeRequest
from .responses import Detokenized, Tokenized
from .schema import (
    MessageMappings,
    decode_detokenize,
    decode_tokenize,
    to_chat_options,
)
from .scope import ScopedRequest
from .state import ServerState


async def answer_tokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Tell the token ids of a text or of a conversation."""
    asked, engine = await read_any_request(state, request, decode_tokenize)
    messages = MessageMappings(asked.messages or ())
    num_characters = len(asked.prompt or "") + messages.num_characters
    with engine.renderer.room.enter(num_characters):
        prompt = await _render(engine, asked, messages)
    build = partial(_build_tokenized, engine, asked, prompt)
    return await respond_built(engine.renderer.workers, build, len(prompt.token_ids))


async def answer_detokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Tell the text of token ids."""
    asked, engine = await read_any_request(state, request, decode_detokenize)
    with engine.renderer.room.enter(len(asked.tokens)):
        text = await engine.renderer.detokenize(asked.tokens)
    return respond_json(Detokenized(prompt=text))


def _build_tokenized(
    engine: TextEngine | PoolingEngine, asked: TokenizeRequest, prompt: Prompt
) -> Tokenized:
    return Tokenized(
        count=len(prompt.token_ids),
        max_model_len=engine.info.max_model_len,
        tokens=prompt.token_ids,
        token_strs=(
            tuple(map(engine.renderer.token_text, prompt.token_ids))
            if asked.return_token_strs
            else None
        ),
    )


async def _render(
    engine: TextEngine | PoolingEngine,
    asked: TokenizeRequest,
    messages: MessageMappings,
) -> Prompt:
    options = TokenizeOptions(add_special_tokens=asked.adds_special_tokens)
    if asked.prompt is not None:
        return await engine.renderer.render_text(asked.prompt, options)
    return await engine.renderer.render_chat(messages, to_chat_options(asked), options)
