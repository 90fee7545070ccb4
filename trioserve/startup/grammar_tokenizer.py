"""The tokenizer of a model in the form that grammars need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..types.model_info import ModelInfo

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def load_grammar_tokenizer(folder: Path, info: ModelInfo) -> LLTokenizer:
    """Load it; takes a third of a second for 49,152 tokens.

    Raises:
      ValueError: grammars cannot use the tokenizer.
      WeightsBroken, UnsupportedModel: as load_tokenizer.
    """
    # Imported here, because only the first grammar needs them.
    from ..grammar.matchers import make_tokenizer
    from ..render.text.loading import load_tokenizer

    return make_tokenizer(
        load_tokenizer(folder).backend.to_str(),
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
    )
