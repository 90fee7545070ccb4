"""Reasoning told apart from the answer, in text that arrives piece by piece.

Models that reason write their thoughts between two tags and the answer behind them.
Whether an answer begins inside of its reasoning is told by the prompt where it can be:
many chat templates end in the start tag, and with reasoning switched off in the end tag.
Only the very end of the prompt is looked at, which a template writes, never what a user
said.

Text is kept as it is, with one exception: whitespace directly behind a start tag, on
both sides of an end tag, and before a start tag that nothing else precedes is dropped,
for it belongs to the tags (Qwen3 writes "<think>\\n...\\n</think>\\n\\n"). Only the first
section is reasoning; tags behind it are the answer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ...errors import InvalidConfig
from .stop import StopScanner
from .tokenizer import TextTokenizer
from .vocabulary import Vocabulary

# Where a text stands: reasoning may yet begin; it began, but the model may write the
# start tag itself; within it; behind it.
Place = Literal["before", "opened", "inside", "after"]

# A template ends in a tag and a line end or two. What has more space is none.
_MAX_END_CHARACTERS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStyle:
    """How a family of models marks its reasoning.

    Args:
      start, end: the tags around it.
      assumes_start: an answer begins inside of it where the prompt does not tell.
    """

    start: str
    end: str
    assumes_start: bool = False


_THINK: Final = ReasoningStyle(start="<think>", end="</think>")
_OPEN_THINK: Final = ReasoningStyle(start="<think>", end="</think>", assumes_start=True)

# Names as in vLLM 0.33, `kimi` (Kimi-VL) as in SGLang; config.RenderConfig has the same.
# Several share a row: they differ in their templates, which the prompt's end shows.
REASONING_STYLES: Final[Mapping[str, ReasoningStyle]] = {
    "deepseek_r1": _OPEN_THINK,
    "deepseek_v3": _THINK,
    "glm45": _THINK,
    "granite": ReasoningStyle(
        start="Here is my thought process:", end="Here is my response:"
    ),
    "kimi": ReasoningStyle(start="◁think▷", end="◁/think▷"),
    "minimax_m2": _OPEN_THINK,
    "mistral": ReasoningStyle(start="[THINK]", end="[/THINK]"),
    "olmo3": _OPEN_THINK,
    "qwen3": _THINK,
    "seed_oss": ReasoningStyle(start="<seed:think>", end="</seed:think>"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """A style, and what its tags are in one model's tokens.

    Args:
      start_token_ids, end_token_ids: at least one each.
      kept_token_ids: those of them that are special tokens, which a text leaves out
        otherwise.
    """

    style: ReasoningStyle
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    kept_token_ids: frozenset[int]

    def find_place(self, prompt: str | None) -> Place:
        """Tell where the answer to a prompt begins.

        Args:
          prompt: as the template rendered it; None if nobody knows.
        """
        end = (prompt or "")[-_MAX_END_CHARACTERS:].rstrip()
        if end.endswith(self.style.end):
            return "after"
        if self.style.assumes_start or end.endswith(self.style.start):
            return "opened"
        return "before"


def load_reasoning_tags(
    name: str, tokenizer: TextTokenizer, vocabulary: Vocabulary
) -> ReasoningTags:
    """Work a style's tags out in a model's tokens.

    Args:
      name: one of REASONING_STYLES.

    Raises:
      InvalidConfig: the tokenizer has no tokens for a tag.
    """
    style = REASONING_STYLES[name]
    ids = {}
    for tag in (style.start, style.end):
        ids[tag] = tokenizer.encode(tag, False, param="reasoning_parser")
        spelt = vocabulary.join(ids[tag], skip_special_tokens=False)
        # Some tokenizers put a space before every text.
        if spelt.decode(errors="replace").lstrip() != tag:
            raise InvalidConfig(
                "reasoning_parser", f"the model's tokenizer cannot write {tag!r}"
            )
    start, end = ids[style.start], ids[style.end]
    return ReasoningTags(
        style=style,
        start_token_ids=start,
        end_token_ids=end,
        kept_token_ids=vocabulary.special_token_ids.intersection(start + end),
    )


class ReasoningSplitter:
    """Splits one text. All reasoning depends on the text alone, not on how it was cut.

    Each character is looked at once. What could be the beginning of a tag, or the space
    before one, is held back; nothing that was given out is taken back.

    Attributes:
      begin, end: the section that is reasoning, tags included, as offsets into the
        text; None where that is not known yet.
    """

    __slots__ = (
        "_answer_begun",
        "_lead",
        "_num_read",
        "_opening",
        "_place",
        "_scanner",
        "_style",
        "_thoughts",
        "begin",
        "end",
    )

    def __init__(self, style: ReasoningStyle, place: Place = "before") -> None:
        self._style = style
        self._place: Place = place
        tag = style.start if place == "before" else style.end
        self._scanner = StopScanner((tag,))
        self._num_read = 0
        # Space at the beginning of a text without an answer so far.
        self._lead: list[str] = []
        self._answer_begun = False
        # What may be the start tag, though the prompt has one.
        self._opening = ""
        self._thoughts = _Trimmer()
        self.begin = None if place == "before" else 0
        self.end = 0 if place == "after" else None

    @property
    def num_decided(self) -> int:
        """Characters of which it is known whether they belong to the section."""
        if self._place == "before":
            return self._num_read - self._scanner.num_held
        return self._num_read

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece; returns (reasoning, content) that it adds."""
        self._num_read += len(text)
        match self._place:
            case "before":
                return self._seek(text)
            case "opened":
                return self._open(text)
            case "inside":
                return self._think(text)
            case "after":
                return "", self._answer(text)

    def finish(self) -> tuple[str, str]:
        """The text ends here: give what was held back."""
        place, self._place = self._place, "after"
        match place:
            case "before":
                content = self._begin_answer(self._scanner.release())
                return "", content or "".join(self._lead)
            case "opened" | "inside":
                rest = self._opening + self._scanner.release()
                return self._thoughts.push(rest) + self._thoughts.release(), ""
            case "after":
                return "", ""

    def _seek(self, text: str) -> tuple[str, str]:
        found, rest = self._find(text)
        content = self._begin_answer(found)
        if rest is None:
            return "", content
        self._lead.clear()
        self.begin = self._num_read - len(rest) - len(self._style.start)
        self._place = "inside"
        self._scanner = StopScanner((self._style.end,))
        reasoning, answer = self._think(rest)
        return reasoning, content + answer

    def _open(self, text: str) -> tuple[str, str]:
        """Drop the start tag if the model writes it although the prompt did."""
        seen = (self._opening + text).lstrip()
        start = self._style.start
        if len(seen) < len(start) and start.startswith(seen):
            self._opening = seen
            return "", ""
        self._opening = ""
        self._place = "inside"
        return self._think(seen.removeprefix(start))

    def _think(self, text: str) -> tuple[str, str]:
        found, rest = self._find(text)
        reasoning = self._thoughts.push(found)
        if rest is None:
            return reasoning, ""
        self.end = self._num_read - len(rest)
        self._place = "after"
        self._answer_begun = False
        return reasoning, self._answer(rest)

    def _answer(self, text: str) -> str:
        if not self._answer_begun:
            text = text.lstrip()
            self._answer_begun = bool(text)
        return text

    def _begin_answer(self, text: str) -> str:
        """Hold back space at the beginning, which a start tag would make vanish."""
        if self._answer_begun:
            return text
        self._lead.append(text)
        if not text or text.isspace():
            return ""
        self._answer_begun = True
        text = "".join(self._lead)
        self._lead.clear()
        return text

    def _find(self, text: str) -> tuple[str, str | None]:
        """Look for the tag; what is before it, and what is after it once it is there."""
        num_characters = self._scanner.num_held + len(text)
        found = self._scanner.scan(text)
        tag = self._scanner.stop
        if tag is None:
            return found, None
        num_after = num_characters - len(found) - len(tag)
        return found, text[len(text) - num_after :]


class _Trimmer:
    """A text without the space around it: that at its end is held back."""

    __slots__ = ("_begun", "_space")

    def __init__(self) -> None:
        self._begun = False
        self._space: list[str] = []

    def push(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return ""
        released = "".join(self._space) + body
        self._space = [text[len(body) :]]
        return released

    def release(self) -> str:
        return "".join(self._space)
