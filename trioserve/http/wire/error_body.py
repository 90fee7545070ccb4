"""The body of errors, in OpenAI's shape."""

from __future__ import annotations

import msgspec

from ...errors import TrioserveError


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
