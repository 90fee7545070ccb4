"""The prompts of sentence-transformers: texts that a model wants before others."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import InvalidParameter
from ...types.sentence import SentenceFolder
from .texts import Kind

# Of each kind the names under which its prompt may stand, the first one first. Source:
# encode_query and encode_document of sentence-transformers 6.2.
_NAMES: dict[Kind, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPrompt:
    """What is put directly before a text.

    Args:
      token_ids: the prompt's alone.
    """

    text: str = ""
    token_ids: array[int] = field(default_factory=lambda: array("i"))


NO_PROMPT = PoolingPrompt()


class Prompts:
    """A model's prompts, tokenized once.

    Args:
      encode: the ids of a text without special tokens.
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
        """Find the prompt of a name, else of a kind, else the default one.

        A kind that has none has no prompt: the default is for texts of no kind.

        Raises:
          InvalidParameter: there is none of that name.
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
        known = ", ".join(self._prompts)
        raise InvalidParameter(
            "prompt_name",
            f"must be one of {known}" if known else "this model has no prompts",
        )
