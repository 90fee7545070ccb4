"""The decoder of POST /v1/completions, and the fields that it refuses or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from ...errors import InvalidParameter
from ..decode.decoder import BodyDecoder
from ..decode.errors import Neutral, Refused
from ..decode.payloads import Payloads, Strings
from ..decode.values import (
    PIECE_BYTES,
    begins_with,
    decode_field,
    decode_ids,
    read_string,
    split_list,
)
from ..shared.refused import CHATS_ALONE, FOREIGN, IGNORED, LABELS, UNSUPPORTED
from ..shared.requests import decode_processors
from ..shared.structured import STRUCTURE_FIELDS
from .request import CompletionPrompt, CompletionRequest, PromptItem

# It has no source: clients were seen to send fewer. vLLM has a limit of the same kind
# (VLLM_MAX_COMPLETION_PROMPTS).
MAX_PROMPTS: Final = 1024

_LONGEST_LABEL: Final = 64

_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    **UNSUPPORTED,
    # In a plain text, the beginning of the reasoning is unknown.
    "thinking_token_budget": (),
}

_FOREIGN: Final[Mapping[str, Refused]] = {
    **FOREIGN,
    "system": (CHATS_ALONE, ("",)),
    "template": (CHATS_ALONE, ("",)),
    "images": (CHATS_ALONE, ([],)),
    "image_data": (CHATS_ALONE, ([],)),
    "max_completion_tokens": ("send max_tokens", ()),
    "max_output_tokens": ("send max_tokens", ()),
}


def decode_prompt(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> CompletionPrompt | None:
    """Decode texts, token ids, or lists of them.

    Args:
      max_tokens: so many ids are too many.

    Raises:
      InvalidParameter: the value is none of these.
      ContextLengthExceeded: there are `max_tokens` ids or more.
    """
    if len(memoryview(raw)) <= PIECE_BYTES or not begins_with(raw, b"["):
        return _check_types(name, decode_field(name, raw, CompletionPrompt | None))
    if bytes(memoryview(raw)[1:PIECE_BYTES]).lstrip()[:1].isdigit():
        return decode_ids(name, raw, max_tokens)
    items = split_list(name, raw, MAX_PROMPTS)
    prompts = tuple(
        (
            decode_ids(f"{name}[{index}]", item, max_tokens)
            if begins_with(item, b"[")
            else decode_field(f"{name}[{index}]", item, PromptItem)
        )
        for index, item in enumerate(items)
    )
    return _check_types(name, prompts)


def decode_embeds_list(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[memoryview, ...] | None:
    """Return the bytes of one string, or of each string in a list.

    Raises:
      InvalidParameter: the value is something else, or an empty list.
    """
    if begins_with(raw, b'"'):
        return (read_string(name, raw),)
    if not begins_with(raw, b"["):
        return cast(None, decode_field(name, raw, list[msgspec.Raw] | None))
    items = split_list(name, raw, MAX_PROMPTS)
    if not items:
        raise InvalidParameter(name, f"takes 1 to {MAX_PROMPTS} tensors")
    return tuple(read_string(f"{name}[{i}]", item) for i, item in enumerate(items))


def _check_types(name: str, prompt: Any) -> CompletionPrompt | None:
    """Refuse mixed lists, which the types of the decoder cannot exclude."""
    if isinstance(prompt, tuple):
        types = set(map(type, prompt))
        if len(types) > 1:
            raise InvalidParameter(
                name, "must not mix strings, token ids and lists of token ids"
            )
        if types != {int} and len(prompt) > MAX_PROMPTS:
            raise InvalidParameter(name, f"at most {MAX_PROMPTS} prompts are allowed")
    return cast(CompletionPrompt | None, prompt)


def _put_back(fields: dict[str, Any], strings: Strings) -> None:
    whole = {label: payload[1:-1] for label, payload in strings.items()}
    if embeds := fields["prompt_embeds"]:
        fields["prompt_embeds"] = tuple(
            whole.get(bytes(e), e) if len(e) < _LONGEST_LABEL else e for e in embeds
        )


COMPLETION_BODY: Final = BodyDecoder(
    CompletionRequest,
    {
        "logits_processors": decode_processors,
        "prompt": decode_prompt,
        "prompt_embeds": decode_embeds_list,
        **STRUCTURE_FIELDS,
    },
    refused=_UNSUPPORTED,
    foreign=_FOREIGN,
    ignored=IGNORED | LABELS,
    payloads=Payloads(keys=frozenset({b'"prompt_embeds"'}), put_back=_put_back),
)
