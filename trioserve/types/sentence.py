"""What the files of sentence-transformers say of a model, as values.

weights/sentence reads them, the renderer and the model go by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PoolingMode = Literal[
    "cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceModule:
    """A module that follows the pooling; or the transformer, where nothing is pooled.

    Args:
      kind: "normalize" has no weights.
      path: its folder, relative to the model's.
      activation: of "dense", the full name of its class.
      adds_input: "dense" adds what it reads to what it makes of it.
    """

    kind: Literal["dense", "layer_norm", "normalize"]
    path: str = ""
    activation: str = "torch.nn.modules.linear.Identity"
    adds_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryExpansion:
    """How late interaction fills queries up with tokens that say nothing.

    Args:
      length: tokens of every query at least, special ones included.
      is_limit: and at most: longer ones are cut.
      token: None is the tokenizer's mask token, or where it has none the one that ends
        texts.
      is_seen: the query's own tokens attend to these.
    """

    length: int
    is_limit: bool = True
    token: str | None = None
    is_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFolder:
    """A folder of sentence-transformers, as far as it matters here.

    Args:
      transformer_path: where config.json and the weights are, relative to the folder.
      max_seq_length: of texts in tokens; None is what the transformer can read.
      lowercases: texts are brought to lower case first.
      modes: how tokens become a vector; several are put side by side. Empty where each
        token keeps its own.
      pools_prompts: tokens of prompts are pooled with the others.
      modules: what follows, in order.
      prompts: texts that are put before others, by name.
      default_prompt: of these, the one for texts of which nothing is said.
      query_length, document_length: late interaction: tokens of a query and of a
        document at most, neither above max_seq_length; None is max_seq_length.
      query_expansion: late interaction: None does not expand queries.
      skipped_words: late interaction: tokens of documents that have no vector, as far as
        the vocabulary has them.
      special_words: late interaction: what prompts begin with, such as "[unused0]".
        Those of them that the vocabulary has must not be taken apart by the tokenizer;
        a longer one goes before a shorter one with which it begins.
      averages_similarity: late interaction: MaxSim is divided by the number of the
        query's vectors.
      truncate_dim: the size that vectors are cut to, after all else.
    """

    transformer_path: str = ""
    max_seq_length: int | None = None
    lowercases: bool = False
    modes: tuple[PoolingMode, ...] = ()
    pools_prompts: bool = True
    modules: tuple[SentenceModule, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    query_length: int | None = None
    document_length: int | None = None
    query_expansion: QueryExpansion | None = None
    skipped_words: tuple[str, ...] = ()
    special_words: tuple[str, ...] = ()
    averages_similarity: bool = False
    truncate_dim: int | None = None
