"""The bodies of POST /tokenize and POST /detokenize, and their decoders."""

from __future__ import annotations

from typing import Final

from ...errors import InvalidParameter
from ...render import ReasoningEffort
from ..chat.body import CHAT_PAYLOADS, TEMPLATE_FIELDS
from ..decode.decoder import BodyDecoder
from ..decode.fields import ChatTemplateText, ModelRequest, TokenId
from ..decode.values import decode_ids
from ..shared.message_mappings import (
    TemplateFields,
    check_continuation,
    check_messages,
)
from ..shared.messages import Messages
from ..shared.tools import ToolChoice

# The fields of /tokenize that only have a meaning for conversations.
_CHAT_FIELDS: Final = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "tools",
)


class TokenizeRequest(TemplateFields, ModelRequest, frozen=True, kw_only=True):
    """The body of POST /tokenize: a prompt, or messages as chat takes them."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: ToolChoice | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidParameter("prompt", "send either prompt or messages")
        for name in _CHAT_FIELDS:
            if self.messages is None and getattr(self, name):
                raise InvalidParameter(name, "is only taken with messages")
        check_messages(self.messages or ())
        check_continuation(self.add_generation_prompt, self.continue_final_message)

    @property
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens; by default to prompts alone."""
        if self.add_special_tokens is None:
            return self.prompt is not None
        return self.add_special_tokens


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: tuple[TokenId, ...]


TOKENIZE_BODY: Final = BodyDecoder(
    TokenizeRequest,
    TEMPLATE_FIELDS,
    refused={
        "documents": ([],),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    },
    payloads=CHAT_PAYLOADS,
)
DETOKENIZE_BODY: Final = BodyDecoder(DetokenizeRequest, {"tokens": decode_ids})
