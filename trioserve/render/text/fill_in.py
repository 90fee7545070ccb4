"""The text by which a model fills the gap between two texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FillInForm:
    """The tokens around the text before the gap and the text behind it.

    Args:
      before, between, after: tokens before, between and behind the two texts; `after` may
        be empty.
      suffix_first: the text behind the gap comes first.
    """

    before: str
    between: str
    after: str = ""
    suffix_first: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.before, self.between, self.after)))

    def write(self, prompt: str, suffix: str) -> str:
        """Return the prompt of the model, whose answer fills the gap."""
        first, second = (suffix, prompt) if self.suffix_first else (prompt, suffix)
        return f"{self.before}{first}{self.between}{second}{self.after}"


_FORMS: Final = (
    # Qwen 2.5 and 3, with and without Coder, CodeGemma
    FillInForm(
        before="<|fim_prefix|>", between="<|fim_suffix|>", after="<|fim_middle|>"
    ),
    # StarCoder, Granite
    FillInForm(before="<fim_prefix>", between="<fim_suffix>", after="<fim_middle>"),
    # DeepSeek
    FillInForm(
        before="<｜fim▁begin｜>", between="<｜fim▁hole｜>", after="<｜fim▁end｜>"
    ),
    # Codestral
    FillInForm(before="[SUFFIX]", between="[PREFIX]", suffix_first=True),
)


def find_fill_in_form(has_token: Callable[[str], bool]) -> FillInForm | None:
    """Return the form of which a tokenizer has all tokens; None if it has none.

    Args:
      has_token: tells whether a text is one token.
    """
    for form in _FORMS:
        if all(map(has_token, form.tokens)):
            return form
    return None
