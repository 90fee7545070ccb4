"""Types and bounds of fields that several requests have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

from ...frontend import MAX_STOP_STRING_CHARACTERS
from ...render import ReasoningEffort
from .messages import ToolType
from .tool_choice import AllowedMode, ToolMode

# Bounds on the memory and time that one request can take. They have no source: each is
# more than clients were seen to send. vLLM has limits of the same kind
# (VLLM_MAX_STOP_STRINGS, VLLM_MAX_COMPLETION_PROMPTS).
MAX_PROMPTS: Final = 1024
MAX_CACHE_SALT_CHARACTERS: Final = 1024
MAX_CHAT_TEMPLATE_CHARACTERS: Final = 65_536

# JSON allows numbers of any length. Numbers of more than 64 bits are refused before the
# server computes with them.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARACTERS)]
ChatTemplateText = Annotated[str, Meta(max_length=MAX_CHAT_TEMPLATE_CHARACTERS)]
# Request ids become part of response ids, which clients log and put into headers. So only
# visible ASCII is allowed. The last group keeps Python's `$` from matching before a line
# end.
RequestIdText = Annotated[str, Meta(pattern=r"^[!-~]{1,128}$(?!\n)")]
REQUEST_ID_RULE: Final = "must be 1 to 128 visible ASCII characters"

Side = Literal["left", "right"]

# The values of each field with a fixed set of values. The decoder's error has no list.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "reasoning_effort": get_args(ReasoningEffort),
    "mode": get_args(AllowedMode),
    "tool_choice": get_args(ToolMode),
    "truncation_side": get_args(Side),
    "type": get_args(ToolType),
}
