"""The text around calls and answers, from which grammars of them are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The text around the names and the arguments of calls.

    Args:
      arguments: the form of the arguments; None if they are a JSON object.
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
    arguments: ArgumentsForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsForm:
    """The text around the keys and the values of arguments that are not a JSON object.

    Args:
      before, between, after: before a key, between a key and its value, and behind that.
      separator: between two pairs.
      text_between: in place of `between` if the value is a text without quotes.
      text_end: the text behind a text without quotes, which none contains; it ends in
        `after` if objects do not nest. Empty if all values are JSON.
      nests: objects have this form in each other. Texts stand between two `text_end`.
    """

    before: str
    between: str
    after: str = ""
    separator: str = ""
    text_between: str = ""
    text_end: str = ""
    nests: bool = False


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
