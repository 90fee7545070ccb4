"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from quart import Response

from ..steps import Prompt
from ..text_engine import TextEngine
from .body import log_unknown_fields, read_json_body, respond_json
from .requests import TokenizeRequest
from .responses import Detokenized, Tokenized
from .schema import decode_detokenize, decode_tokenize, to_messages
from .scope import ScopedRequest
from .state import ServerState


async def answer_tokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Tell the token ids of a text or of a conversation."""
    body = await read_json_body(request)
    asked = decode_tokenize(body)
    log_unknown_fields(body, asked)
    engine = state.require_engine(asked.model)
    prompt = await _render(engine, asked)
    renderer = engine.renderer
    return respond_json(
        Tokenized(
            count=len(prompt.token_ids),
            max_model_len=engine.info.max_model_len,
            tokens=prompt.token_ids,
            token_strs=(
                tuple(map(renderer.token_text, prompt.token_ids))
                if asked.return_token_strs
                else None
            ),
        )
    )


async def answer_detokenize(state: ServerState, request: ScopedRequest) -> Response:
    """Tell the text of token ids."""
    asked = decode_detokenize(await read_json_body(request))
    engine = state.require_engine(asked.model)
    return respond_json(
        Detokenized(prompt=await engine.renderer.detokenize(asked.tokens))
    )


async def _render(engine: TextEngine, asked: TokenizeRequest) -> Prompt:
    if asked.prompt is not None:
        return await engine.renderer.render_text(
            asked.prompt, add_special_tokens=asked.adds_special_tokens
        )
    return await engine.renderer.render_chat(
        to_messages(asked.messages or ()),
        add_generation_prompt=asked.adds_generation_prompt,
        continue_final_message=bool(asked.continue_final_message),
        add_special_tokens=asked.adds_special_tokens,
        chat_template_kwargs=asked.chat_template_kwargs,
    )
