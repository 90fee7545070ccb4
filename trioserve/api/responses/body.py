"""The decoder of POST /v1/responses, and the fields that it refuses or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..decode.decoder import BodyDecoder
from ..decode.errors import Neutral, Refused
from ..decode.payloads import Payloads, put_back
from ..decode.values import decode_copy
from ..shared.message_mappings import decode_template_kwargs
from ..shared.refused import CHATS_ALONE, FOREIGN, IGNORED, UNSUPPORTED
from ..shared.requests import decode_processors
from .request import ResponseRequest, TextConfig
from .tools import decode_flat_tool_choice, decode_flat_tools

_RESPONSE_THINKING: Final = "send reasoning.effort none, or chat_template_kwargs"

_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    **UNSUPPORTED,
    "n": (1,),
    "echo": (False,),
    "max_tokens": (),
    "max_completion_tokens": (),
    "reasoning_effort": (),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "return_token_ids": (False,),
    "return_metrics": (False,),
    "return_tokens_as_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "include_reasoning": (True,),
    "continue_final_message": (False,),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "access_programs": ({},),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "image": ({},),
    "moderation": (),
    "previous_input_messages": ([],),
    "enable_response_messages": (False,),
    "prompt": (),
    # An option of streams that makes all events equally long.
    "stream_options": ({}, {"include_obfuscation": False}),
}

_ADVICE: Final = {
    "max_completion_tokens": "send max_output_tokens",
    "max_tokens": "send max_output_tokens",
    "reasoning_effort": "send reasoning.effort",
    "response_format": "send text.format",
}

_FOREIGN: Final[Mapping[str, Refused]] = {
    **FOREIGN,
    **{
        name: ("send max_output_tokens", neutral)
        for name, (advice, neutral) in FOREIGN.items()
        if advice == "send max_tokens"
    },
    "n_probs": ("send top_logprobs", (0,)),
    "top_n_tokens": ("send top_logprobs", (0,)),
    "format": ("send text.format", ("",)),
    "json_schema": ("send text.format of the type json_schema", ({},)),
    "regex": (CHATS_ALONE, ()),
    "ebnf": (CHATS_ALONE, ()),
    "grammar": (CHATS_ALONE, ("",)),
    "template": ("send chat_template_kwargs", ("",)),
    "truncate": ("send truncation", ()),
    "prompt_truncate_len": ("send truncation", ()),
    "image_data": ("send images in input", ([],)),
    "images": ("send images in input", ([],)),
    "return_full_text": ("it does not repeat the input", (False,)),
    "system": ("send instructions", ("",)),
    "enable_thinking": (_RESPONSE_THINKING, (True,)),
    "thinking": (_RESPONSE_THINKING, ({"type": "enabled"}, {"type": "auto"})),
    "thinking_budget": ("send thinking_token_budget", ()),
    "text.format.json_schema": ("send its fields beside type", ()),
    "text.format.value": ("send schema", ()),
    "reasoning.max_tokens": ("send thinking_token_budget", ()),
}


RESPONSE_PAYLOADS: Final = Payloads(
    keys=frozenset({b'"image_url"'}), put_back=partial(put_back, "input")
)

RESPONSE_BODY: Final = BodyDecoder(
    ResponseRequest,
    {
        "logits_processors": decode_processors,
        "chat_template_kwargs": decode_template_kwargs,
        "tools": decode_flat_tools,
        "text": partial(decode_copy, TextConfig),
        "tool_choice": decode_flat_tool_choice,
    },
    refused=_UNSUPPORTED,
    advice=_ADVICE,
    foreign=_FOREIGN,
    # Responses repeat the labels.
    ignored=IGNORED,
    payloads=RESPONSE_PAYLOADS,
)
