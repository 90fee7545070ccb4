"""The parameters of the text of a request."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidParameter
from ..render import MAX_STOP_CHARACTERS
from ..types.structured import StructuredOutput

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARACTERS = 1024
# The same limit as for max_tokens.
MAX_THINKING_TOKEN_BUDGET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParams:
    """Parameters of the way from token ids to text.

    Args:
      stop: strings that end a sequence; they may begin and end inside tokens.
      include_stop_str_in_output: keep the stop string, or the text of the stop token.
      skip_special_tokens: leave out tokens such as <|im_end|>.
      thinking_token_budget: tokens of reasoning after which a chat's answer begins; None
        sets no limit.
      parallel_tool_calls: a sequence may call several tools; otherwise it ends behind its
        first call.
      forced_tools: names of the tools of which a sequence must call one, or several; none
        leaves it free.
      structured: the form that the text of the answer must have; None leaves it free. An
        answer of forced calls has no text.

    Raises:
      InvalidParameter: the strings of `stop` are too long together, or the budget is negative.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    thinking_token_budget: int | None = None
    parallel_tool_calls: bool = True
    forced_tools: frozenset[str] = frozenset()
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        if sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            raise InvalidParameter(
                "stop", f"at most {MAX_STOP_CHARACTERS} characters in all are taken"
            )
        budget = self.thinking_token_budget
        if budget is not None and not 0 <= budget <= MAX_THINKING_TOKEN_BUDGET:
            raise InvalidParameter(
                "thinking_token_budget",
                f"must be between 0 and {MAX_THINKING_TOKEN_BUDGET}, got {budget}",
            )

    def check_stop(self) -> None:
        """Check each stop string of a program that embeds the engine.

        The types of the API's fields check those of clients, and name the wrong one.

        Raises:
          InvalidParameter: one is empty or too long, or there are too many.
        """
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParameter("stop", f"at most {MAX_STOP_STRINGS} are possible")
        if not all(0 < len(text) <= MAX_STOP_STRING_CHARACTERS for text in self.stop):
            raise InvalidParameter(
                "stop",
                f"each must have 1 to {MAX_STOP_STRING_CHARACTERS} characters",
            )
