"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import InvalidParameter
from ...frontend import TextParams
from ...render import ReasoningEffort
from ..decode.fields import ChatTemplateText, Int64
from ..shared.message_mappings import (
    TemplateFields,
    check_continuation,
    check_messages,
)
from ..shared.messages import Messages
from ..shared.requests import GenerationRequest
from ..shared.tools import NamedTool, ToolChoice, list_forced


class ChatRequest(TemplateFields, GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions.

    Args:
      echo: the content of the answer begins with the last message, if that is the
        assistant's.
      tool_choice: by default the model may call all tools. `none` hides them from it, and
        `allowed_tools` hides others than its own. `required` and the name of a tool make
        it call one.
      parallel_tool_calls: False ends an answer behind its first call, and so does the name
        of a tool.
    """

    splits_reasoning: ClassVar[bool] = True

    messages: Messages
    echo: bool | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    thinking_token_budget: Int64 | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: ReasoningEffort | None = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_messages(self.messages)
        check_continuation(self.add_generation_prompt, self.continue_final_message)
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(self, name) and not self.logprobs:
                raise InvalidParameter(name, "is only taken with logprobs=true")

    def take_sampling(self, values: dict[str, Any]) -> None:
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        if self.max_completion_tokens is not None:
            values["max_tokens"] = self.max_completion_tokens

    def name_sampling(self, name: str) -> str:
        if name == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return "top_logprobs" if name == "logprobs" else name

    def make_text_params(self, **others: Any) -> TextParams:
        return super().make_text_params(
            thinking_token_budget=self.thinking_token_budget,
            # A client that names a tool expects one call of it, as OpenAI's servers answer.
            parallel_tool_calls=self.parallel_tool_calls is not False
            and not isinstance(self.tool_choice, NamedTool),
            forced_tools=(
                list_forced(self.tool_choice, self.tools or ())
                if self.tool_choice
                else frozenset()
            ),
            **others,
        )

    @property
    def echoed_text(self) -> str:
        """The text before the answer, if the client wants it."""
        last = self.messages[-1] if self.echo else None
        return last.text if last is not None and last.role == "assistant" else ""

    @property
    def includes_reasoning(self) -> bool:
        """True if the answer shows the reasoning, if the server splits it off."""
        return self.include_reasoning is not False

    @property
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens; by default the template does."""
        return bool(self.add_special_tokens)
