"""Fields that clients send and this server does not implement, one row each.

Such a field is refused unless its value is neutral: a neutral value means the behaviour
that the server has anyway, and client libraries send many of them. JSON's null is always
neutral. Fields that change nothing are in ignored.py. All other unknown fields are ignored,
too, as vLLM ignores them.

Sources: the API references of OpenAI, Anthropic and Cohere; protocol.py of vLLM 0.33's
endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ...errors import NotSupported

Neutral = tuple[object, ...]

# The advice in the error, or nothing, and the neutral values.
Refused = tuple[str, Neutral]

BOTH: Final[Mapping[str, Neutral]] = {
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "mm_processor_kwargs": ({},),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "stream_interval": (1,),
    "return_token_offsets": (False,),
    "return_weight_versions": (False,),
    "routed_experts_prompt_start": (),
}

CHAT: Final[Mapping[str, Neutral]] = {
    **BOTH,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "documents": ([],),
    "media_io_kwargs": ({},),
    "mm_payload": (),
    "moderation": (),
    "return_prompt_text": (False,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}

COMPLETION: Final[Mapping[str, Neutral]] = {
    **BOTH,
    # In a plain text, the beginning of the reasoning is unknown.
    "thinking_token_budget": (),
}

RESPONSE: Final[Mapping[str, Neutral]] = {
    **BOTH,
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

TOKENIZE: Final[Mapping[str, Neutral]] = {
    name: CHAT[name] for name in ("documents", "media_io_kwargs", "mm_processor_kwargs")
}

POOLING: Final[Mapping[str, Neutral]] = {
    "padding": ("do_not_pad",),
    "normalize": (),
    "late_chunking_params": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    # For plug-ins of vLLM.
    "data": (),
}

SCORING: Final[Mapping[str, Neutral]] = {
    **POOLING,
    # For templates of pairs.
    "instruction": ("",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    # For Cohere's models.
    "rank_fields": ([],),
    "max_chunks_per_doc": (),
    "relevant_spans": (),
}

COHERE_EMBED: Final[Mapping[str, Neutral]] = {"images": ([],)}

_ANTHROPIC: Final[Mapping[str, Neutral]] = {
    "billing_policy": (),
    "context_management": (
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
}

COUNT_TOKENS: Final = _ANTHROPIC

MESSAGES: Final[Mapping[str, Neutral]] = {
    **_ANTHROPIC,
    "compaction": (),
    "container": (),
    "diagnostics": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "service_tier": ("auto", "standard_only"),
    "thread": (),
}

# The advice, where there is an alternative.
_INSTEAD: Final[Mapping[str, str]] = {
    "function_call": "send tool_choice",
    "functions": "send tools",
    "max_completion_tokens": "send max_output_tokens",
    "max_tokens": "send max_output_tokens",
    "normalize": "send use_activation",
    "output_format": "send output_config.format",
    "reasoning_effort": "send reasoning.effort",
    "response_format": "send text.format",
    "thread": "send the whole conversation in messages",
}

# All neutral values are far shorter, so longer values are refused without decoding.
_LONGEST_NEUTRAL_BYTES = 64


def advise(table: Mapping[str, Neutral]) -> dict[str, Refused]:
    """Return a table of this module with the advice for each field."""
    return {name: (_INSTEAD.get(name, ""), neutral) for name, neutral in table.items()}


def refuse(name: str, value: msgspec.Raw, refused: Refused) -> None:
    """Raise unless the value of a field that is not implemented is neutral.

    Raises:
      NotSupported: `param` is the field.
    """
    advice, neutral = refused
    if not _is_neutral(bytes(memoryview(value)[: _LONGEST_NEUTRAL_BYTES + 1]), neutral):
        raise NotSupported(name, advice)


def _is_neutral(value: bytes, neutral: Neutral) -> bool:
    if len(value) > _LONGEST_NEUTRAL_BYTES:
        return False
    try:
        decoded = msgspec.json.decode(value)
    # The value was not decoded before, so it may not be UTF-8.
    except ValueError:
        return False
    return decoded is None or decoded in neutral
