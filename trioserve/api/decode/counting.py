"""Counts the objects, lists and fields of JSON before it is decoded.

The decoder reads text with some nanoseconds a byte, but each field and each empty list
takes up to a hundred, in a call that holds the GIL. So bodies of fields and lists are
refused before any of them is decoded. All this is done in pieces, so other threads can run.
"""

from __future__ import annotations

from collections.abc import Iterator
import re
from typing import Final

import msgspec

from ...errors import InvalidParameter

# Four for each of MAX_MESSAGES (messages.py): a message with a list of parts and a call has
# five, and most messages have one or three.
MAX_CONTAINERS: Final = 65_536

# The fields of one object. The longest mapping that is taken is logit_bias, with 1024.
MAX_FIELDS: Final = 4096

# A body, or a part of one, that is not longer has too few objects and fields to count them:
# they take a millisecond.
FEW_BYTES: Final = 65_536

_PIECE_BYTES: Final = 65_536

_MARKS: Final = b"{}[]:"
_OTHERS: Final = bytes(set(range(256)) - set(_MARKS))

_COLON: Final = ord(":")

# The marks of containers with few fields, and the nesting of most of them.
_FEW_FIELDS: Final = (b"[]", *(b"{" + b":" * number + b"}" for number in range(6)))
_MAX_DROPS: Final = 8

# Marks of one kind in a row.
_RUNS: Final = re.compile(rb":+|[{\[]+|[}\]]+")


def check_size(
    name: str | None,
    json: msgspec.Raw | bytes,
    *,
    max_containers: int = MAX_CONTAINERS,
    few_bytes: int = FEW_BYTES,
) -> None:
    """Refuse JSON with too many objects and lists, or with too many fields in one object.

    Args:
      name: the field that is checked; None for the whole body.
      few_bytes: shorter JSON is not counted.

    Raises:
      InvalidParameter
    """
    if len(memoryview(json)) <= few_bytes:
        return
    marks = bytearray()
    num_containers = 0
    for piece in _list_marks(memoryview(json)):
        num_containers += piece.count(b"{") + piece.count(b"[")
        if num_containers > max_containers:
            raise _refuse(name, f"{max_containers} objects and lists")
        marks += piece
    # Most bodies have fewer fields in all.
    if marks.count(b":") > MAX_FIELDS and _has_many_fields(bytes(marks)):
        raise _refuse(name, f"{MAX_FIELDS} fields in one object")


def _list_marks(json: memoryview) -> Iterator[bytes]:
    """Yield the _MARKS that stand outside of strings, piece by piece.

    Outside of strings, JSON has no backslashes. The decoder refuses others.
    """
    is_inside, rest = 0, b""
    for begin in range(0, len(json), _PIECE_BYTES):
        piece = rest + bytes(json[begin : begin + _PIECE_BYTES])
        rest = b""
        if b"\\" in piece:
            # A backslash belongs to the byte behind it.
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece, rest = piece[:-1], b"\\"
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b"".join(parts[is_inside::2]).translate(None, _OTHERS)
        is_inside = (is_inside + len(parts) - 1) % 2


def _has_many_fields(marks: bytes) -> bool:
    """Return whether an object has more than MAX_FIELDS fields."""
    # Most objects have few fields. This drops them fast, from the inside out.
    for _ in range(_MAX_DROPS):
        num_before = len(marks)
        for few in _FEW_FIELDS:
            marks = marks.replace(few, b"")
        if len(marks) == num_before:
            break
    open_ = [0]
    for run in _RUNS.findall(marks):
        if run[0] == _COLON:
            open_[-1] += len(run)
            if open_[-1] > MAX_FIELDS:
                return True
        elif run[0] in b"{[":
            open_ += [0] * len(run)
        else:
            del open_[max(1, len(open_) - len(run)) :]
    return False


def _refuse(name: str | None, bound: str) -> InvalidParameter:
    if name is None:
        return InvalidParameter(None, f"The body has more than {bound}.")
    return InvalidParameter(name, f"at most {bound} are taken")
