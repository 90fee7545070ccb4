"""Failures of grammars, the client's and ours, and llguidance's messages in plain words.

llguidance names positions in the text of a grammar, which the client may never have seen,
and lists special tokens or the names of other grammars.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import logging
import re
from typing import Final

from ..errors import TrioserveError
from ..types.structured import StructureKind

logger = logging.getLogger(__name__)

# at 1(8): unknown name: "x"
#    1 | start: x
#                ^
_PLACE: Final = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_EXPRESSION: Final = re.compile(r"regex parse error:.*?\nerror: ([^\n]*)", re.DOTALL)
_KEYS: Final = re.compile(r"Unimplemented keys: \[(.*)\]")

_MAX_CHARACTERS: Final = 400

# Of a message's first line.
_RULES: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"failed to compile JSON schema: ", ""),
        (r'invalid regex ".*" \(in regex\): ', "the expression is wrong: "),
        (r"lookarounds not supported yet.*", "look-around is not supported"),
        (r"Unknown format: (.*)", r'the format "\1" is not supported'),
        (r"Invalid type: (.*)", r'"type" has no value "\1"'),
        (r"invalid multiple of", '"multipleOf" must not be 0'),
        (r"Pointer '(.*)' does not exist", r'"$ref" names "#\1", which does not exist'),
        (
            r"Resource '(.*)' is not present in a registry.*",
            r'"$ref" names "\1", but only parts of the schema itself can be named',
        ),
        (
            r"oneOf constraints are not supported.*",
            '"oneOf" is only supported if its schemas clearly exclude each other',
        ),
        (
            r"min/maxProperties only supported when.*",
            '"minProperties" and "maxProperties" are only supported if all "properties" '
            'are "required"',
        ),
        (
            r"patternProperty regexes (.*) are not disjoint",
            r'"patternProperties" \1 may match the same name',
        ),
        (
            r"Unsatisfiable schema: anyOf is empty",
            'no value is allowed: "anyOf", "enum" or "type" is empty',
        ),
        (r"Unsatisfiable schema: (.*)", r"no value matches: \1"),
        (r"Expected f64 for '(\w+)'", r'"\1" must be a number'),
        (
            r"Expected positive integer for '(\w+)'",
            r'"\1" must be a whole number that is not negative',
        ),
        (r"Expected array for '(\w+)'", r'"\1" must be an array'),
        (r"Expected (\w+) for '(\w+)'", r'"\2" must be of the type \1'),
        (r"(grammar size|initial lexer configuration).* too big.*", "it is too large"),
        (r"Unable to determine if regex is empty.*", "its expressions are too complex"),
        (
            r"(?i)(ParserTooComplex|LexerTooComplex|"
            r"(lexer|parser) error: (too many|current row)).*",
            "it has become too complex",
        ),
        (r"(?i)parser error: token.*", "the next token does not fit the grammar"),
        (r"^lexer error$", "the text is not Lark"),
        (r"NoExtension.*", "no text has the form"),
        (r"no start rule found", 'there is no rule "start"'),
        (r"; following .*", ""),
    )
)


def explain(message: str, kind: StructureKind | None = None) -> str:
    """Return a plain message.

    Args:
      kind: of the form; None if it is not known. Positions are kept for the text of a
        client's own grammar alone.
    """
    place = _PLACE.match(message)
    text = message[place.end() :] if place else message
    text = _explain_rest(text.strip(), kind)[:_MAX_CHARACTERS]
    if place and kind == "grammar":
        return f"line {place[1]}, column {place[2]}: {text}"
    return text


def _explain_rest(text: str, kind: StructureKind | None) -> str:
    if (wrong := _EXPRESSION.search(text)) is not None:
        where = (
            '"pattern" or "patternProperties"' if kind == "json" else "the expression"
        )
        return f"{where} is wrong: {wrong[1]}"
    if (keys := _KEYS.search(text)) is not None:
        if "," in keys[1]:
            return f"the keywords {keys[1]} are not supported"
        return f"the keyword {keys[1]} is not supported"
    text, _, _ = text.partition("\n")
    for pattern, plain in _RULES:
        text = pattern.sub(plain, text)
    return text


class GrammarError(Exception):
    """Raised when a client's grammar cannot be used: the message is for the client."""


class LibraryFailed(Exception):
    """Raised when the library fails; the log has the cause."""


@contextmanager
def raising_library_failures() -> Iterator[None]:
    """Turn an unexpected error of the library in the block into LibraryFailed."""
    try:
        yield
    except (GrammarError, LibraryFailed, TrioserveError):
        raise
    # A panic of the library is not an Exception. Nothing can be cancelled in these threads.
    except BaseException as error:
        logger.error("llguidance failed", exc_info=error)
        raise LibraryFailed(type(error).__name__) from error  # noqa: ASYNC104


def check_panic(message: str) -> None:
    """Raise LibraryFailed if a message of the library reports a panic of its own."""
    if "panic" in message[:200]:
        logger.error("llguidance failed: %s", message)
        raise LibraryFailed("panic")
