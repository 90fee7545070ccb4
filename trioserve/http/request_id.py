"""Names of requests, by which clients, proxies and the log find each other's lines."""

from __future__ import annotations

import re
import uuid

from werkzeug.datastructures import Headers

HEADER = "X-Request-Id"
# As ASGI and h11 have it.
HEADER_BYTES = HEADER.lower().encode()

# What may come back in a header and in the id of an answer. h11 lets control characters
# and latin-1 through.
_SANE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def make_request_id() -> str:
    """Return an id that no other request has."""
    return uuid.uuid4().hex


class RequestId:
    """The id of one request.

    It is the client's own where it has sent one, in the header X-Request-Id or, as vLLM's
    clients do, in the body. If it has sent both, the answer's header has the one and the
    answer's id ends in the other.

    Attributes:
      text: what the answer's header and the log say.
    """

    def __init__(self, headers: Headers) -> None:
        sent = headers.get(HEADER, "")
        self._is_sent = _SANE.fullmatch(sent) is not None
        self.text = sent if self._is_sent else make_request_id()

    def __str__(self) -> str:
        return self.text

    def take(self, asked: str | None) -> str:
        """Return what the id of the answer ends in.

        Args:
          asked: the id in the body.
        """
        if asked is None:
            return self.text
        if not self._is_sent:
            self.text = asked
        return asked
