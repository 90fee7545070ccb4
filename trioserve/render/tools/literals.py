"""Parts of grammars of answers, in llguidance's variant of Lark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
import json
import re


def write_literal(special_tags: Mapping[str, int], text: str) -> str:
    """Write a text; its special tokens are named by their ids."""
    if not text:
        return ""
    if not special_tags:
        return json.dumps(text, ensure_ascii=False)
    split = re.split(f"({'|'.join(map(re.escape, special_tags))})", text)
    return " ".join(
        (
            f"<[{special_tags[part]}]>"
            if part in special_tags
            else json.dumps(part, ensure_ascii=False)
        )
        for part in split
        if part
    )


def write_thought(tags: tuple[str, str], special_tags: Mapping[str, int]) -> str:
    """Write the rule `thought`: any text between two tags."""
    begin, end = map(partial(write_literal, special_tags), tags)
    return rf"thought: {begin} /(.|\n)*/ {end}"
