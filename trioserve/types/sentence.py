"""The configuration of a sentence-transformers model, as values.

weights/sentence reads the files; the renderer and the model use the values.
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
    """A module after the pooling; or after the transformer, if nothing is pooled.

    Args:
      kind: "normalize" has no weights.
      path: its folder, relative to the model's folder.
      activation: full name of the activation's class, for "dense".
      adds_input: "dense" adds its input to its output.
    """

    kind: Literal["dense", "layer_norm", "normalize"]
    path: str = ""
    activation: str = "torch.nn.modules.linear.Identity"
    adds_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryExpansion:
    """The filling of short queries with mask tokens, in late interaction.

    Args:
      length: the fewest tokens of a query, including special ones.
      is_limit: the length is also the most tokens; longer queries are cut.
      token: the filling token; None is the tokenizer's mask token, or its end token if it
        has no mask token.
      is_seen: the query's own tokens attend to the filling.
    """

    length: int
    is_limit: bool = True
    token: str | None = None
    is_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFolder:
    """The settings of a sentence-transformers folder that this project uses.

    Args:
      transformer_path: folder of config.json and the weights, relative to this folder.
      max_seq_length: the most tokens of a text; None is the limit of the transformer.
      lowercases: texts are converted to lower case first.
      modes: the ways in which tokens become a vector; the vectors of several are joined
        end to end. Empty if each token keeps its own vector.
      pools_prompts: tokens of prompts are pooled with the others.
      modules: the modules that follow, in order.
      prompts: name -> text that is put before other texts.
      default_prompt: name of the prompt for texts without a chosen one.
      query_length, document_length: late interaction: the most tokens of a query and of a
        document, neither above max_seq_length; None is max_seq_length.
      query_expansion: late interaction: None does not expand queries.
      skipped_words: late interaction: tokens of documents that have no vector, if the
        vocabulary has them.
      special_words: late interaction: words with which prompts begin, such as "[unused0]".
        The tokenizer must not split those that the vocabulary has. A longer word comes
        before a shorter one with which it begins.
      averages_similarity: late interaction: MaxSim is divided by the number of the
        query's vectors.
      truncate_dim: the size that vectors are cut to, as the last step.
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
