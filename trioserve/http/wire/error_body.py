"""The parts of answers that need no framework: their encoder, the body of errors, their ids."""

from __future__ import annotations

import re
from typing import Final
import uuid

import msgspec

from ...errors import TrioserveError

HEADER = "X-Request-Id"
# In the form of ASGI and h11.
HEADER_BYTES = HEADER.lower().encode()

# An id is sent back in a header and in the answer. h11 accepts control characters and
# latin-1 in headers, so the id is checked here.
_SANE = re.compile(r"[A-Za-z0-9._-]{1,128}")


def make_request_id() -> str:
    """Return an id that no other request has."""
    return uuid.uuid4().hex


class RequestId:
    """The id of one request.

    The client may send an id in the header X-Request-Id or, as vLLM's clients do, in the
    body. If it sends both, the answer's header repeats the one from the header, and the
    answer's id ends with the one from the body.

    Attributes:
      text: the id in the answer's header and in the log.

    Args:
      sent: the value of the client's header; empty if it sent none.
    """

    def __init__(self, sent: str) -> None:
        self._is_sent = _SANE.fullmatch(sent) is not None
        self.text = sent if self._is_sent else make_request_id()

    def __str__(self) -> str:
        return self.text

    def take(self, body_id: str | None) -> str:
        """Return the end of the answer's id.

        Args:
          body_id: the id in the body, if the client sent one.
        """
        if body_id is None:
            return self.text
        if not self._is_sent:
            self.text = body_id
        return body_id


encode: Final = msgspec.json.Encoder().encode


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an error.

    Args:
      type: the family of the error.
      param: the field of the request that is wrong, if there is one.
      code: the HTTP status.
    """

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer with an error."""

    error: ErrorDetail

    @classmethod
    def of(cls, error: TrioserveError) -> ErrorBody:
        return cls(
            error=ErrorDetail(
                message=str(error),
                type=error.code,
                param=error.param,
                code=error.status,
            )
        )
