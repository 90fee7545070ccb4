"""The vocabulary of pooling: one pass over a text, and what is kept of it.

Values only, as in steps: no I/O, no tensors, no clock. An *input* is what the model
reads at once: a text, a pair of texts, or a chunk of a long one. Its result is a vector,
a matrix with a row for each token, or the similarity with an input that came before it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType

from .tensors import TensorBytes

# embed            a vector for a text
# token_embed      a vector for each of its tokens (late interaction)
# classify         a number for each label
# token_classify   a number for each token and label
PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]

Task = Literal["generate"] | PoolingTask

# Names vectors that stay on the device for later inputs to be compared with. Never used
# twice, so that whoever releases one cannot release another's.
QueryKey = NewType("QueryKey", int)

if TYPE_CHECKING:
    TokenArray = array[int]
else:
    # Messages are decoded by annotations, and this type takes no parameter.
    TokenArray = array

# What is done with a text that is longer than the model.
LongText = Literal["refuse", "truncate", "chunk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInput:
    """What the model reads at once.

    Args:
      token_ids: of type "i", special tokens included; at least one.
      second_begin: where the second text of a pair begins, for models that tell the two
        apart (token_type_ids); 0 for one text, and for models that do not.
      num_unseen: so many tokens at the end see the others and are seen by none, not even
        by themselves: how some ColBERT models fill queries up with mask tokens.
      left_out: positions that the model reads and that are no part of the result: an
        instruction that is not pooled, punctuation in late interaction.
    """

    token_ids: TokenArray
    second_begin: int = 0
    num_unseen: int = 0
    left_out: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What is made of the model's last layer.

    Args:
      task: one of those that PoolingInfo names.
      dimensions: of a Matryoshka vector the first so many numbers; None keeps all.
      use_activation: bring vectors to length 1, and scores of labels to probabilities;
        None does what the model's own files say.
    """

    task: PoolingTask
    dimensions: int | None = None
    use_activation: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInfo:
    """What the other rooms need to know of a loaded pooling model besides ModelInfo.

    Args:
      task: what the model was made for, or was forced to do.
      tasks: what may be asked for: the task, and what is left of it on the way there
        (an embedding model's token vectors).
      num_outputs: numbers of one vector, or labels of a classifier.
      labels: names of a classifier's, in the order of its numbers.
      matryoshka: sizes that vectors may be cut to; an empty tuple is all sizes, None is
        none.
      normalizes: vectors come with length 1 unless the request says otherwise.
      type_ids: the model tells the two texts of a pair apart.
    """

    task: PoolingTask
    tasks: tuple[PoolingTask, ...]
    num_outputs: int
    labels: tuple[str, ...] = ()
    matryoshka: tuple[int, ...] | None = None
    normalizes: bool = True
    type_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRow:
    """One input's share of a step; inputs are never cut.

    Args:
      keep_as: the result stays on the device under this key until it is released, and
        what is given back is empty.
      compare_with: in place of the result its similarity with what is kept under this
        key: the cosine of two vectors, or MaxSim of two matrices (of which the kept one
        is the query's). It was kept by an earlier step, or is by this one.
    """

    input: PoolingInput
    params: PoolingParams
    keep_as: QueryKey | None = None
    compare_with: QueryKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPlan:
    """What one step computes, after it has forgotten what is kept under `releases`."""

    step_id: int
    rows: tuple[PoolingRow, ...]
    releases: tuple[QueryKey, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.input.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingResult:
    """What the device gave back for a plan.

    Args:
      tensors: one for each row, in order, float32:
        embed, classify              (num_outputs,), or (dimensions,)
        token_embed, token_classify  (num_tokens - left out, num_outputs)
        keep_as                      (0,)
        compare_with                 ()
      num_kept: results that are on the device now.
    """

    step_id: int
    tensors: tuple[TensorBytes, ...]
    num_kept: int = 0
