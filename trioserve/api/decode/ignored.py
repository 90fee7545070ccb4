"""Fields that are taken and change nothing, by endpoint.

Most are labels for the client's own use. Hints for a cache change nothing, because the
prefix cache keeps all prompts. Some are fields of the request's struct, which are checked
nevertheless. Other unknown fields are ignored, too, but the debug log names them.
"""

from __future__ import annotations

from typing import Final

_CACHE_HINTS: Final = frozenset(
    {"cache_control", "prompt_cache_options", "prompt_cache_retention", "session_id"}
)

# There is one price and one speed, one model without alternatives (OpenRouter's field), and
# one way to write a chat (mode of text-generation-webui).
_WISHES: Final = frozenset({"mode", "models", "service_tier"})

# Responses repeat the labels.
RESPONSE: Final = _CACHE_HINTS | _WISHES

COMPLETION: Final = (
    _CACHE_HINTS
    | _WISHES
    | {
        "metadata",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
)

# Chats are not stored. Templates have no place for a verbosity, and a prediction of the answer
# would only be a hint for speed.
CHAT: Final = COMPLETION | {"prediction", "store", "verbosity"}

MESSAGES: Final = frozenset({"cache_control", "metadata", "user_profile_id"})

# Anthropic ignores the field here: compaction needs its provider, but counting does not.
COUNT_TOKENS: Final = MESSAGES | {"compaction"}

# Requests that pool share no cache.
POOLING: Final = frozenset({"cache_salt", "user"})
