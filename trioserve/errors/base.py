"""The root of all errors, and groups of them."""

from __future__ import annotations

from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


def find_first(errors: ExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group and its nested groups: an answer has one."""
    error = errors.exceptions[0]
    return find_first(error) if isinstance(error, ExceptionGroup) else error


class TrioserveError(Exception):
    """The root of the tree; never raised itself.

    Attributes:
      status: of the answer, in HTTP.
      code: the family of the error, for clients.
      param: the field of the request that is wrong, if there is one.
    """

    status = 500
    code = "InternalServerError"
    param: str | None = None
