"""Text to the lines of a terminal, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.text import Text

from ...errors import make_safe
from .blocks import MARKDOWN


class _LeftHeading(Heading):
    """A heading at the left, where a narrow answer is read."""

    LEVEL_ALIGN: ClassVar = {}


class _Markdown(Markdown):
    """Markdown in which a link shows its address, and HTML its text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
    }

    def __init__(self, text: str) -> None:
        # The colours of this theme are the terminal's own, on its own background.
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = MARKDOWN.parse(text)
        # Models mean their line ends, for example in a poem.
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


class _Safe:
    """Renders something else, and keeps commands for the terminal out of its text.

    Text was made safe before it was parsed, but Markdown has escapes of its own, such as
    &#13; and %1b in the address of a link.
    """

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for segment in console.render(self._content, options):
            if not segment.control:
                yield Segment(make_safe(segment.text), segment.style)


class Markup:
    """Renders for one console.

    Args:
      console: of the terminal; it knows its width and its colours.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def render_markdown(self, text: str) -> list[str]:
        """Return the lines of Markdown, without blank ones around them."""
        return _strip(self._render(_Markdown(make_safe(text))))

    def render_plain(self, text: str) -> list[str]:
        """Return the lines of a text as it is."""
        return self._render(_plain(text))

    def render_dimmed(self, text: str) -> list[str]:
        return self._render(_plain(text, "dim italic"))

    def _render(self, content: RenderableType) -> list[str]:
        with self._console.capture() as capture:
            self._console.print(_Safe(content), highlight=False)
        return capture.get().removesuffix("\n").split("\n")


def _plain(text: str, style: str = "") -> Text:
    return Text(make_safe(text).removesuffix("\n"), style=style, overflow="fold")


def _strip(lines: Sequence[str]) -> list[str]:
    """Leave blank lines out at both ends; they may have styles."""
    filled = [
        number
        for number, line in enumerate(lines)
        if Text.from_ansi(line).plain.strip()
    ]
    return [*lines[filled[0] : filled[-1] + 1]] if filled else []
