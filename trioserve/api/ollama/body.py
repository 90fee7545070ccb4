"""The decoders of the requests of Ollama's API, and the fields that they refuse or ignore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from ...http.live.model_hold import ModelHold
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ..decode.body import EngineT, read_request
from ..decode.decoder import BodyDecoder, DecodeField, RequestT
from ..decode.errors import Neutral, Refused
from ..decode.payloads import Payloads, put_back
from ..decode.values import decode_copy
from ..shared.refused import FOREIGN
from ..shared.tools import decode_tool_choice, decode_tools
from .requests import (
    GenerateRequest,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    ShowRequest,
)

_TOO_LONG: Final = "leave out the oldest messages of a conversation that is too long"

# What would be dropped where the context is full.
_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    "shift": (False,),
    "truncate": (False,),
    "_debug_render_only": (False,),
}
_ADVICE: Final = {
    "shift": "an answer ends where the context does",
    "truncate": _TOO_LONG,
    "context": "send the conversation to /api/chat",
    "template": "templates are Jinja; send raw, with a prompt in the model's form",
    "_debug_render_only": "POST /tokenize shows the tokens of a conversation",
}

_UNSUPPORTED_GENERATE: Final[Mapping[str, Neutral]] = {
    **_UNSUPPORTED,
    "context": ([],),
    "template": ("",),
    # Of models that make images.
    "width": (0,),
    "height": (0,),
    "steps": (0,),
}

_LOADED: Final = "the model is loaded already; the options of trioserve serve place it"

# Options that the model's runner would have, each with the value that changes nothing.
_RUNNER: Final[Mapping[str, Refused]] = {
    "numa": (_LOADED, (False,)),
    "num_batch": (_LOADED, (512,)),
    "num_gpu": (_LOADED, (-1,)),
    "main_gpu": (_LOADED, (0,)),
    "num_thread": (_LOADED, (0,)),
    "low_vram": (_LOADED, (False,)),
    "f16_kv": (_LOADED, (True,)),
    "logits_all": (_LOADED, (False,)),
    "vocab_only": (_LOADED, (False,)),
    "use_mmap": (_LOADED, (True,)),
    "use_mlock": (_LOADED, (False,)),
    "embedding_only": (_LOADED, (False,)),
}

_SAMPLERS: Final[Mapping[str, Refused]] = {
    **{name: FOREIGN[name] for name in ("typical_p", "tfs_z", "mirostat")},
    "repeat_last_n": ("repeat_penalty has no window", FOREIGN["repeat_last_n"][1]),
    "penalize_newline": ("newlines are tokens as others", (True,)),
    "repetition_penalty": ("send repeat_penalty", ()),
    "max_tokens": ("send num_predict", ()),
}

_INSIDE: Final = "send it in options"

# Ollama ignores options that stand beside `model`, and people wonder.
_MISPLACED: Final[Mapping[str, Refused]] = {
    **{
        name: (_INSIDE, ())
        for name in (
            *("top_k", "min_p", "seed", "stop"),
            *("presence_penalty", "frequency_penalty", "repeat_penalty"),
            *("num_predict", "num_ctx"),
        )
    },
    "max_tokens": ("send options.num_predict", ()),
    "response_format": ("send format", ({"type": "text"},)),
    "reasoning_effort": ("send think", ()),
}


def _place(options: Mapping[str, Refused]) -> dict[str, Refused]:
    return {f"options.{name}": row for name, row in options.items()}


_FOREIGN: Final = {**_MISPLACED, **_place({**_RUNNER, **_SAMPLERS})}
_CHATS_ALONE: Final[Mapping[str, Refused]] = {
    "messages": ("send them to /api/chat", ([],)),
    "tools": ("send them to /api/chat", ([],)),
    "tool_choice": ("send it to /api/chat", ("auto", "none")),
}
_FORMAT: Final[Mapping[str, DecodeField]] = {
    "format": partial(decode_copy, msgspec.Raw)
}

OLLAMA_CHAT_BODY: Final = BodyDecoder(
    OllamaChatRequest,
    {**_FORMAT, "tools": decode_tools, "tool_choice": decode_tool_choice},
    refused=_UNSUPPORTED,
    advice=_ADVICE,
    foreign=_FOREIGN,
    payloads=Payloads(
        keys=frozenset({b'"images"'}), put_back=partial(put_back, "messages")
    ),
)
GENERATE_BODY: Final = BodyDecoder(
    GenerateRequest,
    _FORMAT,
    refused=_UNSUPPORTED_GENERATE,
    advice=_ADVICE,
    foreign={**_FOREIGN, **_CHATS_ALONE},
    payloads=Payloads(
        keys=frozenset({b'"images"'}), put_back=partial(put_back, "images")
    ),
)
OLLAMA_EMBED_BODY: Final = BodyDecoder(
    OllamaEmbedRequest,
    foreign={**_place(_RUNNER), "prompt": ("send input", ("",))},
    bounds_ids=False,
)
OLLAMA_EMBEDDING_BODY: Final = BodyDecoder(
    OllamaEmbeddingRequest,
    foreign={
        **_place(_RUNNER),
        "input": ("send prompt, or send it to /api/embed", ("", [])),
        "dimensions": ("send it to /api/embed", (0,)),
        "truncate": ("send it to /api/embed", (True,)),
    },
    bounds_ids=False,
)
SHOW_BODY: Final = BodyDecoder(ShowRequest, ignored=frozenset({"verbose"}))


async def read_ollama(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
    require: Callable[[ModelHold, str | None], Awaitable[EngineT]],
) -> tuple[RequestT, EngineT]:
    """Read a body as read_request does, but also one that is not declared as JSON.

    Ollama reads any body as JSON. litellm, and the commands of Ollama's manual, do not
    declare it.
    """
    return await read_request(state, request, decoder, require, is_always_json=True)
