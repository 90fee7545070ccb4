"""Finished parts of a text that still grows, so that each is drawn for the last time once."""

from __future__ import annotations

from typing import Final

from markdown_it import MarkdownIt

# Text in the form of HTML is shown, and not left out: it may be what was asked for, or the
# tag of a model's reasoning.
MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable(
    ["strikethrough", "table"]
)


def split_blocks(text: str) -> list[str]:
    """Split Markdown into its blocks, with the blank lines behind each; at least one."""
    starts = [
        token.map[0]
        for token in MARKDOWN.parse(text)
        if token.level == 0 and token.nesting >= 0 and token.map is not None
    ]
    lines = text.split("\n")
    ends = [*starts[1:], len(lines)]
    # Text before the first block belongs to it.
    starts = [0, *starts[1:]]
    blocks = ["\n".join(lines[start:end]) for start, end in zip(starts, ends)]
    return [*(f"{block}\n" for block in blocks[:-1]), blocks[-1]]


def split_finished_blocks(text: str) -> list[str]:
    """Split Markdown into blocks; no further text can change any but the last.

    A block is finished when a complete line of another one follows it: Markdown's blocks are
    read line by line, and never opened again.

    Source: CommonMark 0.31, appendix "A parsing strategy".
    """
    end = text.rfind("\n") + 1
    *finished, last = split_blocks(text[:end])
    return [*finished, last + text[end:]]


def split_lines(text: str) -> list[str]:
    """Split a text into its complete lines, as one part, and the rest."""
    end = text.rfind("\n") + 1
    return [text[:end], text[end:]] if end else [text]
