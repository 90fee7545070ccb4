"""Takes payloads of megabytes out of a body before it is decoded, and puts them back.

The decoder reads each byte in one call that holds the GIL, 0.25 ms for a megabyte. Base64
does not need that: only the end of the string has to be found, and `find` is twelve times
as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import re
import secrets
from typing import Any, Final

import msgspec

# Shorter payloads are left to the decoder.
_LONG_BYTES: Final = 65_536

# Limits of the search. A body of images and tensors has few strings, and its payloads have
# few escaped quotes. Beyond these limits the decoder reads the rest.
_MAX_STRINGS: Final = 10_000
_MAX_QUOTES: Final = 100

_COLON: Final = re.compile(rb"[ \t\r\n]*:")

# Labels are random, so that no client can send one.
LABEL: Final = re.compile(rb'"([0-9a-f]{32}-[0-9]+)"')

# The payloads with their quotes, by the labels that replace them.
Strings = Mapping[bytes, memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """The payloads of one kind of body.

    Args:
      keys: the fields whose strings are read as bytes, with quotes.
      put_back: replaces the labels in the fields of a decoded request by their payloads.
    """

    keys: frozenset[bytes]
    put_back: Callable[[dict[str, Any], Strings], None]


def take_out(
    body: bytes, keys: frozenset[bytes], *, long_bytes: int = _LONG_BYTES
) -> tuple[bytes, Strings]:
    """Replace long payloads by labels, which occur nowhere else.

    Args:
      keys: as in Payloads.

    Returns:
      the short body, and the payloads. If the body was not JSON, the result is not JSON
      either.
    """
    strings: dict[bytes, memoryview] = {}
    pieces: list[bytes | memoryview] = []
    view, name = memoryview(body), secrets.token_hex(16)
    position = done = 0
    key = b""
    for _ in range(_MAX_STRINGS):
        # The search is outside of strings here, so the next quote begins a string.
        begin = body.find(b'"', position)
        end = _find_end(body, begin + 1)
        if begin < 0 or end < 0:
            break
        position = end + 1
        if _COLON.match(body, position):
            key = body[begin:position]
        elif (
            end - begin > long_bytes
            and key in keys
            # Strings with escapes are left to the decoder.
            and body.find(b"\\", begin, end) < 0
        ):
            label = f"{name}-{len(strings)}".encode()
            strings[label] = view[begin:position]
            # The quotes stay in the body, around the label.
            pieces += [view[done : begin + 1], label]
            done = end
    pieces.append(view[done:])
    return (b"".join(pieces) if strings else body), strings


def _restore(raw: msgspec.Raw, strings: Strings) -> msgspec.Raw:
    """Replace the labels in any value by their payloads."""
    found = LABEL.search(raw)
    if found is None:
        return raw
    if len(found[0]) == len(memoryview(raw)):
        # The payload alone, without a copy.
        return msgspec.Raw(strings.get(found[1], raw))
    return msgspec.Raw(
        LABEL.sub(lambda each: bytes(strings.get(each[1], each[0])), raw)
    )


def put_back(name: str, fields: dict[str, Any], strings: Strings) -> None:
    """Replace the labels in one field of a decoded request by their payloads."""
    fields[name] = _replace(fields[name], strings)


def _replace(value: Any, strings: Strings) -> Any:
    """Return a decoded value with the payloads in the places of their labels."""
    if isinstance(value, msgspec.Raw):
        return _restore(value, strings)
    if isinstance(value, tuple):
        return tuple(_replace(each, strings) for each in value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        replaced = {
            name: _replace(each, strings)
            for name, each in fields
            if isinstance(each, (msgspec.Raw, msgspec.Struct, tuple))
        }
        return msgspec.structs.replace(value, **replaced)
    return value


def _find_end(body: bytes, position: int) -> int:
    """Find the quote that ends a string; -1 if there is none, or too many escapes."""
    for _ in range(_MAX_QUOTES):
        end = body.find(b'"', position)
        num_backslashes = 0
        while end > 0 and body[end - 1 - num_backslashes] == ord("\\"):
            num_backslashes += 1
        if num_backslashes % 2 == 0:
            return end
        position = end + 1
    return -1
