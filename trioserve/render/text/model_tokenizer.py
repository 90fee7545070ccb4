"""A model's tokenizer: the library's object, the special tokens, the chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import json
from typing import Literal

from tokenizers import Tokenizer


def write_rules(rules: object) -> str:
    """Write a `response_template` of transformers as a text, to search it for tags.

    Args:
      rules: None if there are none.
    """
    if rules is None:
        return ""
    # Some tags stand in regular expressions, with backslashes.
    return json.dumps(rules, ensure_ascii=False).replace("\\", "")


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
      response_rules: transformers' rules for reading answers (write_rules); empty if the
        files have none.
      padding_side: the side on which the model's authors padded texts.
    """

    source: str
    class_name: str
    backend: Tokenizer
    special_tokens: Mapping[str, str]
    extra_special_tokens: tuple[str, ...] = ()
    chat_templates: Mapping[str, str]
    response_rules: str = ""
    padding_side: Literal["left", "right"] = "right"

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        tokens = (*self.special_tokens.values(), *self.extra_special_tokens)
        found = map(self.backend.token_to_id, tokens)
        return frozenset(token_id for token_id in found if token_id is not None)
