"""Payloads of megabytes, taken out of a body before it is decoded and put back after.

The decoder looks at each byte, 0.25 ms for a megabyte, in one call that holds the GIL. A
string of base64 has nothing in it to look at but its end, which `find` sees twelve times
as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
import secrets
from typing import Any, Final

import msgspec

from .lazy_fields import begins_with
from .messages import ContentPart, ImageUrl, Message

# Shorter ones are not worth it.
_LONG_BYTES: Final = 65_536

# Strings that are looked at. A body of images and tensors has few; of one with more,
# the decoder reads the rest.
_MAX_STRINGS: Final = 10_000
_MAX_QUOTES: Final = 100

# Fields whose strings are read as bytes: images' URLs and tensors.
_KEYS: Final = frozenset({b'"prompt_embeds"', b'"image_url"', b'"url"'})
_COLON: Final = re.compile(rb"[ \t\r\n]*:")

# Random, so that nobody can send one.
_LABEL: Final = re.compile(rb'"([0-9a-f]{32}-[0-9]+)"')
_LONGEST_LABEL: Final = 64

# What was taken out, quotes included, by what stands in its place between quotes.
Strings = Mapping[bytes, memoryview]


def take_out(body: bytes, *, long_bytes: int = _LONG_BYTES) -> tuple[bytes, Strings]:
    """Replace long payloads by short strings that occur nowhere else.

    Returns:
      the body that is left, and what was taken out. If that was no JSON, this is none.
    """
    strings: dict[bytes, memoryview] = {}
    pieces: list[bytes | memoryview] = []
    view, name = memoryview(body), secrets.token_hex(16)
    position = done = 0
    key = b""
    for _ in range(_MAX_STRINGS):
        # Outside of strings a quote begins one.
        begin = body.find(b'"', position)
        end = _find_end(body, begin + 1)
        if begin < 0 or end < 0:
            break
        position = end + 1
        if _COLON.match(body, position):
            key = body[begin:position]
        elif (
            end - begin > long_bytes
            and key in _KEYS
            # What is escaped is the decoder's to read.
            and body.find(b"\\", begin, end) < 0
        ):
            label = f"{name}-{len(strings)}".encode()
            strings[label] = view[begin:position]
            # Its own quotes are left.
            pieces += [view[done : begin + 1], label]
            done = end
    pieces.append(view[done:])
    return (b"".join(pieces) if strings else body), strings


def put_back(fields: dict[str, Any], strings: Strings) -> None:
    """Give the fields of a decoded request what was taken out of its body."""
    if embeds := fields.get("prompt_embeds"):
        whole = {label: payload[1:-1] for label, payload in strings.items()}
        fields["prompt_embeds"] = tuple(
            whole.get(bytes(e), e) if len(e) < _LONGEST_LABEL else e for e in embeds
        )
    if messages := fields.get("messages"):
        fields["messages"] = tuple(_complete(message, strings) for message in messages)


def _find_end(body: bytes, position: int) -> int:
    """Find the quote that ends a string; -1 if there is none, or none soon."""
    for _ in range(_MAX_QUOTES):
        end = body.find(b'"', position)
        num_backslashes = 0
        while end > 0 and body[end - 1 - num_backslashes] == ord("\\"):
            num_backslashes += 1
        if num_backslashes % 2 == 0:
            return end
        position = end + 1
    return -1


def _complete(message: Message, strings: Strings) -> Message:
    if not isinstance(message.content, tuple):
        return message
    content = tuple(_complete_part(part, strings) for part in message.content)
    return msgspec.structs.replace(message, content=content)


def _complete_part(part: ContentPart, strings: Strings) -> ContentPart:
    for field in ("image_url", "prompt_embeds"):
        raw = getattr(part, field)
        found = _LABEL.search(raw)
        # Of an image's object only the URL is left. One that is wrong stays whole: it is
        # refused where it is read.
        if found and not _is_wrong_image(raw):
            if (payload := strings.get(found[1])) is not None:
                part = msgspec.structs.replace(part, **{field: msgspec.Raw(payload)})
    return part


def _is_wrong_image(raw: msgspec.Raw) -> bool:
    if not begins_with(raw, b"{"):
        return False
    try:
        return not msgspec.json.decode(raw, type=ImageUrl).wants_detail
    except ValueError:
        return True
