"""The reasons in the answers of servers that refuse. Servers differ in their form."""

from __future__ import annotations

import json


def read_reason(body: bytes) -> str:
    """Return the message in the body of an error; "" if there is none."""
    try:
        content = json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    return find_reason(content.get("error", content))


def find_reason(error: object) -> str:
    """Return the message of an error, which is a text or an object; "" if there is none."""
    if isinstance(error, str):
        return error
    if isinstance(error, dict):
        # OpenAI's, FastAPI's, and those of small servers.
        for name in ("message", "detail", "error"):
            if isinstance(error.get(name), str):
                return str(error[name])
    return ""
