"""The text around calls and answers, from which grammars of them are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The text around the names and the arguments of calls, which are JSON.

    Args:
      first, last: before the first call, and behind the last one.
      thought: before and behind reasoning that may stand before the first call.
      takes_one: an answer has one call, because a message of the history has one.
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
    takes_one: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The text around the text of an answer.

    Args:
      before: before the text.
      thought: before and behind reasoning that may stand before that.
    """

    before: str
    thought: tuple[str, str]


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
