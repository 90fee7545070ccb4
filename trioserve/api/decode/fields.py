"""The fields of all requests, and types that fields of several requests have."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...frontend import MAX_STOP_STRING_CHARACTERS

# Bounds on the memory and time that one request can take. They have no source: each is
# more than clients were seen to send. vLLM has limits of the same kind
# (VLLM_MAX_STOP_STRINGS).
MAX_CACHE_SALT_CHARACTERS: Final = 1024
MAX_CHAT_TEMPLATE_CHARACTERS: Final = 65_536
MAX_NAME_CHARACTERS: Final = 1024

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
# JSON allows numbers of any length. Numbers of more than 64 bits are refused before the
# server computes with them.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARACTERS)]
ChatTemplateText = Annotated[str, Meta(max_length=MAX_CHAT_TEMPLATE_CHARACTERS)]
# Request ids become part of response ids, which clients log and put into headers. So only
# visible ASCII is allowed. The last group keeps Python's `$` from matching before a line
# end.
RequestIdText = Annotated[str, Meta(pattern=r"^[!-~]{1,128}$(?!\n)")]
REQUEST_ID_RULE: Final = "must be 1 to 128 visible ASCII characters"

Side = Literal["left", "right"]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of all requests.

    Args:
      model: the model that the client wants; None takes the one that is served.
      timeout: the longest time of the request, in seconds after its head arrived.
    """

    model: Name | None = None
    timeout: Seconds | None = None
