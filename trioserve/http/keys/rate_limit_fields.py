"""Headers that tell clients how many tokens are left to their key.

OpenAI's also have the requests of a minute. There is no such limit here, so these are not sent.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from .key_use import KeyUse


def list_openai_limits(use: KeyUse) -> dict[str, str]:
    """Return x-ratelimit-*; nothing if the key has no limit of tokens."""
    if (limit := use.key.tokens_per_minute) is None:
        return {}
    return {
        "x-ratelimit-limit-tokens": str(limit),
        "x-ratelimit-remaining-tokens": _write_left(use),
        "x-ratelimit-reset-tokens": f"{use.measure_reset(limit):.3f}s",
    }


def list_anthropic_limits(use: KeyUse) -> dict[str, str]:
    """Return anthropic-ratelimit-*; nothing if the key has no limit of tokens."""
    if (limit := use.key.tokens_per_minute) is None:
        return {}
    reset = timedelta(seconds=use.measure_reset(limit))
    at = (datetime.now(timezone.utc) + reset).isoformat(timespec="seconds")
    return {
        "anthropic-ratelimit-tokens-limit": str(limit),
        "anthropic-ratelimit-tokens-remaining": _write_left(use),
        "anthropic-ratelimit-tokens-reset": at.replace("+00:00", "Z"),
    }


def _write_left(use: KeyUse) -> str:
    return str(max(0, int(use.count_left())))
