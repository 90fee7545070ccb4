"""Pieces of grammars in llguidance's variant of Lark."""

from __future__ import annotations

from collections.abc import Mapping
import json
import re
from typing import Any, Final

# llguidance's options. JSON as Python prints it, which models have seen most, and without
# whitespace in other places: models sometimes write whitespace without end.
_JSON: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}

_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/\n\r]")
_LINE_ENDS: Final = {"\n": r"\n", "\r": r"\r"}


def write_json(schema: Mapping[str, Any]) -> str:
    """Write a value that matches a JSON schema."""
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON})}"


def write_literal(special_tags: Mapping[str, int], text: str) -> str:
    """Write a text; its special tokens are named by their ids."""
    return " ".join(
        (
            f"<[{special_tags[part]}]>"
            if part in special_tags
            else json.dumps(part, ensure_ascii=False)
        )
        for part in split_tags(special_tags, text)
        if part
    )


def split_tags(special_tags: Mapping[str, int], text: str) -> list[str]:
    """Split a text at its special tokens, which stand at the odd places."""
    if not special_tags:
        return [text]
    return re.split(f"({'|'.join(map(re.escape, special_tags))})", text)


def escape_regex(text: str) -> str:
    """Write a text as a part of a regular expression between slashes."""
    return _SPECIAL.sub(lambda found: _LINE_ENDS.get(found[0], f"\\{found[0]}"), text)
