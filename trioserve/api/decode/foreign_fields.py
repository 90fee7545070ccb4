"""Fields of other servers, each with the field or the reason that takes its place.

Users of llama.cpp, Ollama, SGLang, TGI and others bring their requests along. A field that would
change the answer is refused, unless its value is neutral: several clients send the defaults
of all fields. A field that changes nothing without another one of them, such as mirostat_tau,
is in no table, and so it is ignored.

Sources: the references of llama-server, Ollama, SGLang, TGI, text-generation-webui and of the
services that have OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .unsupported import Refused

_NO_SAMPLER: Final = "it samples by temperature, top_k, top_p and min_p alone"
_NO_LORA: Final = (
    "adapters (LoRA) are not supported, so merge them into the model before"
)
_SCHEMA: Final = "send response_format of the type json_schema"
_NO_SEARCH: Final = "it does not search the web"
_TOP_LEVEL: Final = "send its fields beside model"
_SYSTEM: Final = "send a message of the role system"
_CHATS_ALONE: Final = "this API has none; send it to /v1/chat/completions"
_THINKING: Final = "send reasoning_effort none, or chat_template_kwargs"
_RESPONSE_THINKING: Final = "send reasoning.effort none, or chat_template_kwargs"

_GENERATION: Final[Mapping[str, Refused]] = {
    # llama.cpp, Ollama and text-generation-webui
    "repeat_penalty": ("send repetition_penalty", (1,)),
    # The penalties look at the whole sequence, as with -1, so 0 asks for none.
    "repeat_last_n": ("repetition_penalty has no window", (-1, 0, 64)),
    "typical_p": (_NO_SAMPLER, (1,)),
    "typical": (_NO_SAMPLER, (1,)),
    "tfs_z": (_NO_SAMPLER, (1,)),
    "tfs": (_NO_SAMPLER, (1,)),
    "top_a": (_NO_SAMPLER, (0,)),
    "top_n_sigma": (_NO_SAMPLER, (-1, 0)),
    "mirostat": (_NO_SAMPLER, (0,)),
    "mirostat_mode": (_NO_SAMPLER, (0,)),
    "dry_multiplier": (_NO_SAMPLER, (0,)),
    "xtc_probability": (_NO_SAMPLER, (0,)),
    "dynatemp_range": (_NO_SAMPLER, (0,)),
    "dynamic_temperature": (_NO_SAMPLER, (False,)),
    "smoothing_factor": (_NO_SAMPLER, (0,)),
    "epsilon_cutoff": (_NO_SAMPLER, (0,)),
    "eta_cutoff": (_NO_SAMPLER, (0,)),
    "penalty_alpha": (_NO_SAMPLER, (0,)),
    "no_repeat_ngram_size": (_NO_SAMPLER, (0,)),
    "encoder_repetition_penalty": (_NO_SAMPLER, (1,)),
    "guidance_scale": (_NO_SAMPLER, (1,)),
    "grammar": ("send guided_grammar, which takes Lark", ("",)),
    "json_schema": (_SCHEMA, ({},)),
    "n_predict": ("send max_tokens", ()),
    "num_predict": ("send max_tokens", ()),
    "n_probs": ("send logprobs", (0,)),
    "image_data": ("send images in messages", ([],)),
    "lora": (_NO_LORA, ([],)),
    "options": (_TOP_LEVEL, ({},)),
    "format": ("send response_format", ("",)),
    "template": ("send chat_template", ("",)),
    "images": ("send images in messages", ([],)),
    # SGLang
    "regex": ("send guided_regex", ()),
    "ebnf": ("send guided_grammar, which takes Lark", ()),
    "stop_regex": ("send stop", ([],)),
    "no_stop_trim": ("send include_stop_str_in_output", (False,)),
    "lora_path": (_NO_LORA, ()),
    "session_params": ("it has no sessions", ({},)),
    "sampling_params": (_TOP_LEVEL, ({},)),
    "custom_logit_processor": ("send logits_processors", ()),
    "return_hidden_states": ("it returns no hidden states", (False,)),
    # TGI and transformers
    "parameters": (_TOP_LEVEL, ({},)),
    "max_new_tokens": ("send max_tokens", ()),
    "min_new_tokens": ("send min_tokens", (0,)),
    "do_sample": ("send temperature 0 for greedy sampling", (True,)),
    "truncate": ("send truncate_prompt_tokens", ()),
    "top_n_tokens": ("send logprobs", (0,)),
    "return_full_text": ("send echo", (False,)),
    "watermark": ("it has no watermarks", (False,)),
    "adapter_id": (_NO_LORA, ()),
    # Mistral, Anthropic, Fireworks, DashScope, xAI
    "random_seed": ("send seed", ()),
    "safe_prompt": ("it has no guard", (False,)),
    "stop_sequences": ("send stop", ([],)),
    "max_tokens_to_sample": ("send max_tokens", ()),
    "prompt_truncate_len": ("send truncate_prompt_tokens", ()),
    "enable_search": (_NO_SEARCH, (False,)),
    "search_parameters": (_NO_SEARCH, ({"mode": "off"},)),
}

COMPLETION: Final[Mapping[str, Refused]] = {
    **_GENERATION,
    "system": (_CHATS_ALONE, ("",)),
    "template": (_CHATS_ALONE, ("",)),
    "images": (_CHATS_ALONE, ([],)),
    "image_data": (_CHATS_ALONE, ([],)),
    "max_completion_tokens": ("send max_tokens", ()),
    "max_output_tokens": ("send max_tokens", ()),
}

CHAT: Final[Mapping[str, Refused]] = {
    **_GENERATION,
    "best_of": ("send n", (1,)),
    "max_output_tokens": ("send max_completion_tokens", ()),
    "system": (_SYSTEM, ("",)),
    "instructions": (_SYSTEM, ("",)),
    "text": ("send response_format", ({},)),
    "output_config": ("send response_format or reasoning_effort", ({},)),
    "output_format": (_SCHEMA, ()),
    # OpenRouter's
    "reasoning": (
        "send reasoning_effort, thinking_token_budget or include_reasoning",
        ({}, {"enabled": True}, {"effort": "medium"}, {"exclude": False}),
    ),
    # DeepSeek's and GLM's
    "thinking": (_THINKING, ({"type": "enabled"}, {"type": "auto"})),
    # DashScope's
    "enable_thinking": (_THINKING, (True,)),
    "thinking_budget": ("send thinking_token_budget", ()),
    # Ollama's
    "think": (_THINKING, (True,)),
    # SGLang's
    "separate_reasoning": ("start it with --reasoning-parser none", (True,)),
}

RESPONSE: Final[Mapping[str, Refused]] = {
    **_GENERATION,
    **{
        name: ("send max_output_tokens", neutral)
        for name, (advice, neutral) in _GENERATION.items()
        if advice == "send max_tokens"
    },
    "n_probs": ("send top_logprobs", (0,)),
    "top_n_tokens": ("send top_logprobs", (0,)),
    "format": ("send text.format", ("",)),
    "json_schema": ("send text.format of the type json_schema", ({},)),
    "regex": (_CHATS_ALONE, ()),
    "ebnf": (_CHATS_ALONE, ()),
    "grammar": (_CHATS_ALONE, ("",)),
    "template": ("send chat_template_kwargs", ("",)),
    "truncate": ("send truncation", ()),
    "prompt_truncate_len": ("send truncation", ()),
    "image_data": ("send images in input", ([],)),
    "images": ("send images in input", ([],)),
    "return_full_text": ("it does not repeat the input", (False,)),
    "system": ("send instructions", ("",)),
    "enable_thinking": (_RESPONSE_THINKING, (True,)),
    "thinking": (_RESPONSE_THINKING, ({"type": "enabled"}, {"type": "auto"})),
    "thinking_budget": CHAT["thinking_budget"],
}

MESSAGES: Final[Mapping[str, Refused]] = {
    "stop": ("send stop_sequences", ([],)),
    "max_completion_tokens": ("send max_tokens", ()),
    "max_new_tokens": ("send max_tokens", ()),
    "max_tokens_to_sample": ("send max_tokens", ()),
    "response_format": ("send output_config.format", ({"type": "text"},)),
    "reasoning_effort": ("send output_config.effort", ()),
    "parallel_tool_calls": ("send tool_choice.disable_parallel_tool_use", (True,)),
    "n": (_CHATS_ALONE, (1,)),
    "seed": (_CHATS_ALONE, ()),
    "min_p": (_CHATS_ALONE, (0,)),
    "presence_penalty": (_CHATS_ALONE, (0,)),
    "frequency_penalty": (_CHATS_ALONE, (0,)),
    "repetition_penalty": (_CHATS_ALONE, (1,)),
    "repeat_penalty": (_CHATS_ALONE, (1,)),
    "logit_bias": (_CHATS_ALONE, ({},)),
    "logprobs": (_CHATS_ALONE, (False,)),
    "guided_json": (_CHATS_ALONE, ()),
    "guided_regex": (_CHATS_ALONE, ()),
    "guided_choice": (_CHATS_ALONE, ()),
    "guided_grammar": (_CHATS_ALONE, ()),
}

# Text Embeddings Inference's and Voyage's
POOLING: Final[Mapping[str, Refused]] = {
    "truncate": ("send truncate_prompt_tokens -1", (False,)),
    "truncation": ("send truncate_prompt_tokens -1", (False,)),
}

# Cohere's, Voyage's and Jina's
VECTORS: Final[Mapping[str, Refused]] = {
    **POOLING,
    "input_type": ("send prompt_name", ()),
    "output_dimension": ("send dimensions", ()),
    "embedding_type": ("send encoding_format", ("float",)),
}

# Fields inside of others, by the path of the field around them.
INSIDE: Final[Mapping[str, Mapping[str, Refused]]] = {
    "text.format": {
        "json_schema": ("send its fields beside type", ()),
        "value": ("send schema", ()),
    },
    "reasoning": {"max_tokens": ("send thinking_token_budget", ())},
}
