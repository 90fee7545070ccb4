"""Separates the reasoning of an answer from its text, which arrives piece by piece.

Models that reason write their thoughts between two tags, and the answer behind them. An
answer may begin inside its reasoning: many chat templates end in the start tag, or in
the end tag if reasoning is switched off. So the end of the prompt decides where the
answer begins. Only the very end counts, which the template writes, and not the user's
words.

Text stays unchanged, with one exception. Whitespace belongs to the tags, and is
dropped, directly behind a start tag, on both sides of an end tag, and between the
beginning of the answer and a start tag (Qwen3 writes "<think>\\n...\\n</think>\\n\\n").
Only the first section is reasoning. Later tags are a part of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ...errors import InvalidConfig
from ...types.families import REASONING_STYLES, ReasoningStyle
from .stop import StopScanner
from .tokenizer import TextTokenizer
from .vocabulary import Vocabulary

# The place of the next character:
#   before   reasoning may still begin
#   opened   reasoning has begun by the prompt, but the model may repeat the start tag
#   inside   within the reasoning
#   after    behind the reasoning
Place = Literal["before", "opened", "inside", "after"]

# A template ends in a tag and one or two line ends. Longer ends are not searched.
_MAX_END_CHARACTERS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """A style, with the token ids of its tags in one model.

    Args:
      start_token_ids, end_token_ids: at least one id each.
      kept_token_ids: ids of the tags that are special tokens. Text leaves out special
        tokens, but must keep these.
    """

    style: ReasoningStyle
    start_token_ids: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    kept_token_ids: frozenset[int]

    def find_place(self, prompt: str | None) -> Place:
        """Return the place at which the answer to a prompt begins.

        Args:
          prompt: the rendered text; None if it is not known.
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
    """Find the token ids of a style's tags in a model's tokenizer.

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
    """Splits one text. The result depends on the whole text, not on its pieces.

    Text that may be the beginning of a tag, or whitespace before a tag, is held back.
    Released text is never taken back.

    Attributes:
      begin, end: the section that is reasoning, tags included, as offsets into the
        text; None while it is not known.
    """

    __slots__ = (
        "_answer_begun",
        "_lead",
        "_num_read",
        "_opening",
        "_place",
        "_reasoning",
        "_scanner",
        "_style",
        "begin",
        "end",
    )

    def __init__(self, style: ReasoningStyle, place: Place = "before") -> None:
        self._style = style
        self._place: Place = place
        tag = style.start if place == "before" else style.end
        self._scanner = StopScanner((tag,))
        self._num_read = 0
        # Whitespace at the beginning of the text, before any other text of the answer.
        self._lead: list[str] = []
        self._answer_begun = False
        # The beginning of a text that may repeat the prompt's start tag.
        self._opening = ""
        self._reasoning = _Trimmer()
        self.begin = None if place == "before" else 0
        self.end = 0 if place == "after" else None

    @property
    def num_decided(self) -> int:
        """The number of characters that are known to be reasoning or answer."""
        if self._place == "before":
            return self._num_read - self._scanner.num_held
        return self._num_read

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece, and return the reasoning and the answer that it adds."""
        self._num_read += len(text)
        match self._place:
            case "before":
                return self._seek(text)
            case "opened":
                return self._open(text)
            case "inside":
                return self._read_reasoning(text)
            case "after":
                return "", self._answer(text)

    def finish(self) -> tuple[str, str]:
        """Release all held text, because no more text follows."""
        place, self._place = self._place, "after"
        match place:
            case "before":
                content = self._begin_answer(self._scanner.release())
                return "", content or "".join(self._lead)
            case "opened" | "inside":
                rest = self._opening + self._scanner.release()
                return self._reasoning.push(rest) + self._reasoning.release(), ""
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
        reasoning, answer = self._read_reasoning(rest)
        return reasoning, content + answer

    def _open(self, text: str) -> tuple[str, str]:
        """Drop the start tag if the model repeats it."""
        seen = (self._opening + text).lstrip()
        start = self._style.start
        if len(seen) < len(start) and start.startswith(seen):
            self._opening = seen
            return "", ""
        self._opening = ""
        self._place = "inside"
        return self._read_reasoning(seen.removeprefix(start))

    def _read_reasoning(self, text: str) -> tuple[str, str]:
        found, rest = self._find(text)
        reasoning = self._reasoning.push(found)
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
        """Hold back whitespace at the beginning: a start tag behind it drops it."""
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
        """Look for the tag.

        Returns:
          The text before the tag, as far as it is released, and the text behind it;
          None for the latter while there is no tag.
        """
        num_characters = self._scanner.num_held + len(text)
        found = self._scanner.scan(text)
        tag = self._scanner.stop
        if tag is None:
            return found, None
        num_after = num_characters - len(found) - len(tag)
        return found, text[len(text) - num_after :]


class _Trimmer:
    """Drops the whitespace around a text. Whitespace at its end is held back."""

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
