"""The bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Final

from ...errors import InvalidParameter
from ...render import ReasoningEffort
from ..decode.fields import ChatTemplateText, ModelRequest, TokenId
from ..shared.messages import Messages, check_continuation, check_messages, opens_turn
from ..shared.tools import ToolChoice, list_shown

# The fields of /tokenize that only have a meaning for conversations.
_CHAT_FIELDS: Final = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "tools",
)


class TokenizeRequest(ModelRequest, frozen=True, kw_only=True):
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
    def adds_generation_prompt(self) -> bool:
        """True if the assistant's turn is opened; not where a message goes on."""
        return opens_turn(self.add_generation_prompt, self.continue_final_message)

    @property
    def shown_tools(self) -> tuple[dict[str, object], ...]:
        """The tools that the model would see."""
        return list_shown(self.tool_choice, self.tools or ())

    @property
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens; by default to prompts alone."""
        if self.add_special_tokens is None:
            return self.prompt is not None
        return self.add_special_tokens


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: tuple[TokenId, ...]
