"""Lets pages of other origins use the API in a browser (the Fetch standard, 3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from werkzeug.datastructures import Headers

Fields = list[tuple[bytes, bytes]]

# The headers that scripts may read besides the harmless ones.
_EXPOSED: Final = ", ".join(
    [
        *("Retry-After", "Request-Id", "X-Request-Id", "X-Should-Retry"),
        *(f"X-RateLimit-{each}-Tokens" for each in ("Limit", "Remaining", "Reset")),
        *(
            f"Anthropic-RateLimit-Tokens-{each}"
            for each in ("Limit", "Remaining", "Reset")
        ),
    ]
).encode()

_METHODS: Final = "DELETE, GET, POST"

# Browsers keep the answer to a preflight for two hours at most.
_MAX_AGE_SECONDS: Final = 7200

# Names of headers in a list. The client's own list is sent back to it.
_NAMES: Final = re.compile(r"[A-Za-z0-9_, -]{1,1024}")


class Cors:
    """The origins whose pages may use the API.

    Keys travel in headers that a page sets, so pages need no credentials of the browser.

    Args:
      origins: as browsers send them, such as https://chat.example; "*" stands for all.
        Without origins, there are no CORS headers.
    """

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(each.encode() for each in origins)
        self._allows_all = b"*" in self._origins

    def list_fields(self, request: Iterable[tuple[bytes, bytes]]) -> Fields:
        """Return the headers of an answer.

        Args:
          request: the headers of the request, with lower-case names.
        """
        if not self._origins:
            return []
        origin = next((value for name, value in request if name == b"origin"), b"")
        # A cache must not give this answer to a page of another origin.
        fields = [] if self._allows_all else [(b"vary", b"Origin")]
        if origin and self._allows(origin):
            allowed = b"*" if self._allows_all else origin
            fields += [
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", _EXPOSED),
            ]
        return fields

    def answer_preflight(self, method: str, headers: Headers) -> dict[str, str] | None:
        """Answer the question of a browser whether a page may send a request.

        Returns:
          the headers of the answer; None if it is not such a question, or the page may not.
        """
        origin = headers.get("Origin", "").encode("latin-1")
        if method != "OPTIONS" or not self._allows(origin):
            return None
        if "Access-Control-Request-Method" not in headers:
            return None
        wanted = headers.get("Access-Control-Request-Headers", "")
        fields = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Max-Age": str(_MAX_AGE_SECONDS),
        }
        if _NAMES.fullmatch(wanted):
            fields["Access-Control-Allow-Headers"] = wanted
        return fields

    def _allows(self, origin: bytes) -> bool:
        return bool(origin) and (self._allows_all or origin in self._origins)
