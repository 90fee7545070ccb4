"""Fields that requests to models that generate have in common, and that have no effect here.

Users of llama.cpp, Ollama, SGLang, TGI and others bring their requests along. A field that
would change the answer is refused, unless its value is neutral: several clients send the
defaults of all fields. A field that changes nothing without another one of them, such as
mirostat_tau, is in no table, and so it is ignored.

Sources: the API reference of OpenAI; protocol.py of vLLM 0.33's endpoints; the references of
llama-server, Ollama, SGLang, TGI, text-generation-webui and of the services that have OpenAI's
API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..decode.errors import Neutral, Refused

# Fields that are not implemented.
UNSUPPORTED: Final[Mapping[str, Neutral]] = {
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

_NO_SAMPLER: Final = "it samples by temperature, top_k, top_p and min_p alone"
_AS_MODEL: Final = "send the name of a loaded adapter as model"
SEND_SCHEMA: Final = "send response_format of the type json_schema"
_NO_SEARCH: Final = "it does not search the web"
_TOP_LEVEL: Final = "send its fields beside model"
CHATS_ALONE: Final = "this API has none; send it to /v1/chat/completions"

# Fields of other servers, each with the field or the reason that takes its place.
FOREIGN: Final[Mapping[str, Refused]] = {
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
    "json_schema": (SEND_SCHEMA, ({},)),
    "n_predict": ("send max_tokens", ()),
    "num_predict": ("send max_tokens", ()),
    "n_probs": ("send logprobs", (0,)),
    "image_data": ("send images in messages", ([],)),
    "lora": (_AS_MODEL, ([],)),
    "options": (_TOP_LEVEL, ({},)),
    "format": ("send response_format", ("",)),
    "template": ("send chat_template", ("",)),
    "images": ("send images in messages", ([],)),
    # SGLang
    "regex": ("send guided_regex", ()),
    "ebnf": ("send guided_grammar, which takes Lark", ()),
    "stop_regex": ("send stop", ([],)),
    "no_stop_trim": ("send include_stop_str_in_output", (False,)),
    "lora_path": (_AS_MODEL, ()),
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
    "adapter_id": (_AS_MODEL, ()),
    # Mistral, Anthropic, Fireworks, DashScope, xAI
    "random_seed": ("send seed", ()),
    "safe_prompt": ("it has no guard", (False,)),
    "stop_sequences": ("send stop", ([],)),
    "max_tokens_to_sample": ("send max_tokens", ()),
    "prompt_truncate_len": ("send truncate_prompt_tokens", ()),
    "enable_search": (_NO_SEARCH, (False,)),
    "search_parameters": (_NO_SEARCH, ({"mode": "off"},)),
}

# Fields that are taken and change nothing. Hints for a cache change nothing, because the
# prefix cache keeps all prompts. There is one price and one speed, one model without
# alternatives (OpenRouter's field), and one way to write a chat (mode of
# text-generation-webui).
IGNORED: Final = frozenset(
    {
        *("cache_control", "prompt_cache_options", "prompt_cache_retention"),
        *("session_id", "mode", "models", "service_tier"),
    }
)

# Labels for the client's own use.
LABELS: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
