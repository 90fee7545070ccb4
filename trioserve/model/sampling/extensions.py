"""Extensions of sampling: plug-ins and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...types.logits import LogitsProcessor
from .grammars import LoadTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """The extensions that sequences may use.

    Args:
      logits_processors: plug-ins that sequences may name.
      load_tokenizer: makes the tokenizer of grammars; None if no sequence may have one.
    """

    logits_processors: Sequence[type[LogitsProcessor]] = ()
    load_tokenizer: LoadTokenizer | None = None
