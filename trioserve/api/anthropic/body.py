"""The decoders of the requests of Anthropic's API, and the fields that they refuse or ignore."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..decode.decoder import BodyDecoder, DecodeField
from ..decode.errors import Neutral, Refused
from ..decode.payloads import Payloads, put_back
from ..decode.values import decode_copy
from ..shared.message_mappings import decode_template_kwargs
from ..shared.refused import CHATS_ALONE
from .requests import (
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
    decode_client_tools,
)

_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    "billing_policy": (),
    "context_management": (
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
}

_UNSUPPORTED_MESSAGES: Final[Mapping[str, Neutral]] = {
    **_UNSUPPORTED,
    "compaction": (),
    "container": (),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "service_tier": ("auto", "standard_only"),
    "thread": (),
}

_ADVICE: Final = {
    "output_format": "send output_config.format",
    "thread": "send the whole conversation in messages",
}

_FOREIGN: Final[Mapping[str, Refused]] = {
    "stop": ("send stop_sequences", ([],)),
    "max_completion_tokens": ("send max_tokens", ()),
    "max_new_tokens": ("send max_tokens", ()),
    "max_tokens_to_sample": ("send max_tokens", ()),
    "response_format": ("send output_config.format", ({"type": "text"},)),
    "reasoning_effort": ("send output_config.effort", ()),
    "parallel_tool_calls": ("send tool_choice.disable_parallel_tool_use", (True,)),
    "n": (CHATS_ALONE, (1,)),
    "seed": (CHATS_ALONE, ()),
    "min_p": (CHATS_ALONE, (0,)),
    "presence_penalty": (CHATS_ALONE, (0,)),
    "frequency_penalty": (CHATS_ALONE, (0,)),
    "repetition_penalty": (CHATS_ALONE, (1,)),
    "repeat_penalty": (CHATS_ALONE, (1,)),
    "logit_bias": (CHATS_ALONE, ({},)),
    "logprobs": (CHATS_ALONE, (False,)),
    "guided_json": (CHATS_ALONE, ()),
    "guided_regex": (CHATS_ALONE, ()),
    "guided_choice": (CHATS_ALONE, ()),
    "guided_grammar": (CHATS_ALONE, ()),
}

_IGNORED: Final = frozenset({"cache_control", "metadata", "user_profile_id"})

TURN_PAYLOADS: Final = Payloads(
    # The input of a call may have fields of the same names.
    keys=frozenset({b'"data"', b'"url"'}),
    put_back=partial(put_back, "messages"),
)

_LAZY: Final[Mapping[str, DecodeField]] = {
    "tools": decode_client_tools,
    "output_config": partial(decode_copy, OutputConfig | None),
    "chat_template_kwargs": decode_template_kwargs,
}

MESSAGES_BODY: Final = BodyDecoder(
    MessagesRequest,
    _LAZY,
    refused=_UNSUPPORTED_MESSAGES,
    advice=_ADVICE,
    foreign=_FOREIGN,
    ignored=_IGNORED,
    payloads=TURN_PAYLOADS,
)
COUNT_TOKENS_BODY: Final = BodyDecoder(
    CountTokensRequest,
    _LAZY,
    refused=_UNSUPPORTED,
    advice=_ADVICE,
    # Anthropic ignores compaction here: it needs its provider, but counting does not.
    ignored=_IGNORED | {"compaction"},
    payloads=TURN_PAYLOADS,
)
