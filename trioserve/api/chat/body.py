"""The decoder of POST /v1/chat/completions, and the fields that it refuses or ignores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..decode.decoder import BodyDecoder, DecodeField
from ..decode.errors import Neutral, Refused
from ..decode.payloads import LABEL, Payloads, Strings
from ..decode.values import begins_with
from ..shared.message_mappings import decode_template_kwargs
from ..shared.messages import ContentPart, ImageUrl, Message
from ..shared.refused import FOREIGN, IGNORED, LABELS, SEND_SCHEMA, UNSUPPORTED
from ..shared.requests import decode_processors
from ..shared.structured import STRUCTURE_FIELDS
from ..shared.tools import decode_tool_choice, decode_tools
from .request import ChatRequest

_SYSTEM: Final = "send a message of the role system"
_THINKING: Final = "send reasoning_effort none, or chat_template_kwargs"

_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    **UNSUPPORTED,
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

_ADVICE: Final = {"function_call": "send tool_choice", "functions": "send tools"}

_FOREIGN: Final[Mapping[str, Refused]] = {
    **FOREIGN,
    "best_of": ("send n", (1,)),
    "max_output_tokens": ("send max_completion_tokens", ()),
    "system": (_SYSTEM, ("",)),
    "instructions": (_SYSTEM, ("",)),
    "text": ("send response_format", ({},)),
    "output_config": ("send response_format or reasoning_effort", ({},)),
    "output_format": (SEND_SCHEMA, ()),
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

# Chats are not stored. Templates have no place for a verbosity, and a prediction of the answer
# would only be a hint for speed.
_IGNORED: Final = IGNORED | LABELS | {"prediction", "store", "verbosity"}

# The decoders of the fields of a chat template.
TEMPLATE_FIELDS: Final[Mapping[str, DecodeField]] = {
    "chat_template_kwargs": decode_template_kwargs,
    "tools": decode_tools,
    "tool_choice": decode_tool_choice,
}


def _put_back(fields: dict[str, Any], strings: Strings) -> None:
    if messages := fields.get("messages"):
        fields["messages"] = tuple(_complete(message, strings) for message in messages)


CHAT_PAYLOADS: Final = Payloads(
    keys=frozenset({b'"prompt_embeds"', b'"image_url"', b'"url"'}), put_back=_put_back
)


def _complete(message: Message, strings: Strings) -> Message:
    if not isinstance(message.content, tuple):
        return message
    content = tuple(_complete_part(part, strings) for part in message.content)
    return msgspec.structs.replace(message, content=content)


def _complete_part(part: ContentPart, strings: Strings) -> ContentPart:
    for field in ("image_url", "prompt_embeds"):
        raw = getattr(part, field)
        found = LABEL.search(raw)
        # The object of an image is replaced by its URL. A wrong object stays, and is
        # refused when it is read.
        if found and not _is_wrong_image(raw):
            if (payload := strings.get(found[1])) is not None:
                part = msgspec.structs.replace(part, **{field: msgspec.Raw(payload)})
    return part


def _is_wrong_image(raw: msgspec.Raw) -> bool:
    if not begins_with(raw, b"{"):
        return False
    try:
        return not msgspec.json.decode(raw, type=ImageUrl).wants_detail
    except ValueError:
        return True


CHAT_BODY: Final = BodyDecoder(
    ChatRequest,
    {
        "logits_processors": decode_processors,
        **TEMPLATE_FIELDS,
        **STRUCTURE_FIELDS,
    },
    refused=_UNSUPPORTED,
    advice=_ADVICE,
    foreign=_FOREIGN,
    ignored=_IGNORED,
    payloads=CHAT_PAYLOADS,
)
