"""A model's tokenizer: the library's object, the special tokens, the chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A tokenizer as its model's files describe it.

    Args:
      source: the folder, for errors.
      class_name: transformers' class of the tokenizer, for errors.
      backend: it neither truncates nor pads. Threads share it; nobody changes it.
      special_tokens: special tokens by name, such as "bos_token". They are variables of
        chat templates.
      extra_special_tokens: special tokens without names.
      chat_templates: by name. A model's only template is called "default".
      padding_side: the side on which the model's authors padded texts.
    """

    source: str
    class_name: str
    backend: Tokenizer
    special_tokens: Mapping[str, str]
    extra_special_tokens: tuple[str, ...] = ()
    chat_templates: Mapping[str, str]
    padding_side: Literal["left", "right"] = "right"

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        tokens = (*self.special_tokens.values(), *self.extra_special_tokens)
        found = map(self.backend.token_to_id, tokens)
        return frozenset(token_id for token_id in found if token_id is not None)
