"""Takes payloads of megabytes out of a body before it is decoded, and puts them back.

The decoder reads each byte in one call that holds the GIL, 0.25 ms for a megabyte. Base64
does not need that: only the end of the string has to be found, and `find` is twelve times
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

# Shorter payloads are left to the decoder.
_LONG_BYTES: Final = 65_536

# Limits of the search. A body of images and tensors has few strings, and its payloads have
# few escaped quotes. Beyond these limits the decoder reads the rest.
_MAX_STRINGS: Final = 10_000
_MAX_QUOTES: Final = 100

# The fields whose strings are read as bytes: URLs of images, and tensors.
_KEYS: Final = frozenset({b'"prompt_embeds"', b'"image_url"', b'"url"'})
_COLON: Final = re.compile(rb"[ \t\r\n]*:")

# Labels are random, so that no client can send one.
_LABEL: Final = re.compile(rb'"([0-9a-f]{32}-[0-9]+)"')
_LONGEST_LABEL: Final = 64

# The payloads with their quotes, by the labels that replace them.
Strings = Mapping[bytes, memoryview]


def take_out(body: bytes, *, long_bytes: int = _LONG_BYTES) -> tuple[bytes, Strings]:
    """Replace long payloads by labels, which occur nowhere else.

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
            and key in _KEYS
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


def put_back(fields: dict[str, Any], strings: Strings) -> None:
    """Replace the labels in the fields of a decoded request by their payloads."""
    if embeds := fields.get("prompt_embeds"):
        whole = {label: payload[1:-1] for label, payload in strings.items()}
        fields["prompt_embeds"] = tuple(
            whole.get(bytes(e), e) if len(e) < _LONGEST_LABEL else e for e in embeds
        )
    if messages := fields.get("messages"):
        fields["messages"] = tuple(_complete(message, strings) for message in messages)


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


def _complete(message: Message, strings: Strings) -> Message:
    if not isinstance(message.content, tuple):
        return message
    content = tuple(_complete_part(part, strings) for part in message.content)
    return msgspec.structs.replace(message, content=content)


def _complete_part(part: ContentPart, strings: Strings) -> ContentPart:
    for field in ("image_url", "prompt_embeds"):
        raw = getattr(part, field)
        found = _LABEL.search(raw)
        # The object of an image is replaced by its URL. A wrong object stays, and is
        # refused when it is read.
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
