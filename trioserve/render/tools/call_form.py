"""The text of calls whose arguments are JSON, from which a grammar of calls is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The text around names and arguments.

    Args:
      first, last: before the first call, and behind the last one.
      thought: before and behind reasoning that may stand before the first call.
      before, between, after: before the name of a call, between the name and the arguments,
        and behind the arguments.
      separator: between two calls.
    """

    before: str
    between: str
    after: str = ""
    separator: str = ""
    first: str = ""
    last: str = ""
    thought: tuple[str, str] | None = None


def make_object_form(
    *, first: str, separator: str, last: str, arguments: str = "arguments"
) -> CallForm:
    """Return the form of calls that are JSON objects.

    Args:
      arguments: the key of the arguments.
    """
    return CallForm(
        before='{"name": "',
        between=f'", "{arguments}": ',
        after="}",
        separator=separator,
        first=first,
        last=last,
    )
