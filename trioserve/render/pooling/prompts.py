"""The prompts of sentence-transformers: texts that are put before other texts."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import InvalidParameter, list_choices
from ...types.sentence import SentenceFolder
from .texts import Kind

# The names of each kind's prompt; the first one that exists is used. Source:
# encode_query and encode_document of sentence-transformers 6.2.
_NAMES: dict[Kind, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPrompt:
    """A text that is put directly before another text.

    Args:
      token_ids: the tokens of the prompt alone.
    """

    text: str = ""
    token_ids: array[int] = field(default_factory=lambda: array("i"))


NO_PROMPT = PoolingPrompt()


class Prompts:
    """A model's prompts, tokenized once.

    Args:
      encode: returns the ids of a text, without special tokens.
    """

    def __init__(
        self, sentence: SentenceFolder, encode: Callable[[str], array[int]]
    ) -> None:
        self._default = sentence.default_prompt
        self._prompts = {
            name: PoolingPrompt(text=text, token_ids=encode(text))
            for name, text in sentence.prompts.items()
        }

    def choose(self, kind: Kind | None, name: str | None) -> PoolingPrompt:
        """Return the prompt of a name; without a name, the prompt of a kind or the default.

        A kind without a prompt of its own has none: the default is for texts of no
          kind.

        Raises:
          InvalidParameter: there is no prompt of that name.
        """
        if name is not None:
            return self._find(name)
        names = (self._default or "",) if kind is None else _NAMES[kind]
        for name in names:
            if name in self._prompts:
                return self._prompts[name]
        return NO_PROMPT

    def _find(self, name: str) -> PoolingPrompt:
        if name in self._prompts:
            return self._prompts[name]
        reason = "this model has no prompts"
        if self._prompts:
            reason = list_choices(self._prompts, name)
        raise InvalidParameter("prompt_name", reason)
