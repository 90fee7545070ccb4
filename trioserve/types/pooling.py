"""The values of pooling: inputs, parameters, plans and results.

An *input* is read in one pass of the model: a text, a pair of texts, or a chunk of a long
text. Its result is a vector, a matrix with a row for each token, or the similarity with an
earlier input.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NewType

from ..errors import InvalidParameter, TaskNotServed
from .tensors import TensorBytes

# embed            a vector for a text
# token_embed      a vector for each of its tokens (late interaction)
# classify         a number for each label
# token_classify   a number for each token and label
PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]

Task = Literal["generate"] | PoolingTask

# The name of a result that stays on the device, so that later inputs can be compared with
# it. A key is never used twice, so that a late release cannot hit another result.
QueryKey = NewType("QueryKey", int)

if TYPE_CHECKING:
    TokenArray = array[int]
else:
    # Messages are decoded by annotations, and this type takes no parameter.
    TokenArray = array

# The treatment of a text that is longer than the model allows.
LongText = Literal["refuse", "truncate", "chunk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInput:
    """The tokens that the model reads in one pass.

    Args:
      token_ids: of type "i", special tokens included; at least one.
      second_begin: position of the second text of a pair, for models that distinguish
        the two (token_type_ids); 0 for one text and for other models.
      num_unseen: number of last tokens that attend to the others, but to which no token
        attends, themselves included. Some ColBERT models fill up queries with such mask
        tokens.
      left_out: positions that the model reads but that are not part of the result: an
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
    """The way from the model's last layer to a result.

    Args:
      task: one of PoolingInfo.tasks.
      dimensions: number of leading numbers of a Matryoshka vector to keep; None keeps all.
      use_activation: scale vectors to length 1, and turn scores of labels into
        probabilities; None follows the model's own files.
    """

    task: PoolingTask
    dimensions: int | None = None
    use_activation: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingInfo:
    """The facts about a loaded pooling model that ModelInfo does not have.

    Args:
      task: the task that the model was made for, or that an option chose.
      tasks: the tasks that requests may name: the task, and tasks whose results are its
        intermediate results (an embedding model's token vectors).
      num_outputs: numbers of one vector, or labels of a classifier.
      labels: names of a classifier's labels, in the order of its numbers.
      matryoshka: sizes that vectors may be cut to; an empty tuple stands for all sizes,
        None for none.
      normalizes: vectors have length 1 unless the request says otherwise.
      type_ids: the model distinguishes the two texts of a pair.
    """

    task: PoolingTask
    tasks: tuple[PoolingTask, ...]
    num_outputs: int
    labels: tuple[str, ...] = ()
    matryoshka: tuple[int, ...] | None = None
    normalizes: bool = True
    type_ids: bool = False

    def check(
        self, params: PoolingParams, model: str, *, param: str = "dimensions"
    ) -> None:
        """Refuse parameters that the model does not serve.

        Args:
          model: its name, for errors.
          param: the request's field with the size of vectors, for errors.

        Raises:
          TaskNotServed: the model serves other tasks.
          InvalidParameter: the model has no vectors of this size.
        """
        if params.task not in self.tasks:
            raise TaskNotServed(model, wanted=params.task, served=", ".join(self.tasks))
        if params.dimensions is None:
            return
        if params.task not in ("embed", "token_embed"):
            raise InvalidParameter(param, f"is not taken for the task {params.task}")
        # Clients such as mem0 name the size that the vectors have anyway.
        if params.task == self.task and params.dimensions == self.num_outputs:
            return
        self._check_size(params.dimensions, model, param)

    def _check_size(self, size: int, model: str, param: str) -> None:
        """Refuse a size that vectors cannot be cut to, in the words of vLLM 0.33."""
        sizes = self.matryoshka
        if sizes is None:
            reason = (
                f"Model '{model}' does not support Matryoshka embeddings; {param} must "
                f"be unset (received {param}={size})."
            )
        elif not 1 <= size <= self.num_outputs:
            reason = (
                f"Model '{model}' only supports {param} in range "
                f"[1, {self.num_outputs}], got {size}."
            )
        elif sizes and size not in sizes:
            reason = (
                f"Model '{model}' only supports Matryoshka dimensions {list(sizes)}, "
                f"got {size}."
            )
        else:
            return
        raise InvalidParameter(param, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRow:
    """One input in a step; a step reads inputs whole.

    Args:
      keep_as: the result stays on the device under this key until it is released; the
        returned tensor is empty.
      compare_with: return instead the similarity with the result that is kept under
        this key: the cosine of two vectors, or MaxSim of two matrices, of which the
        kept one is the query's. An earlier step has kept the result, or this step does.
    """

    input: PoolingInput
    params: PoolingParams
    keep_as: QueryKey | None = None
    compare_with: QueryKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingPlan:
    """The work of one step: first it forgets the results under `releases`, then it reads."""

    step_id: int
    rows: tuple[PoolingRow, ...]
    releases: tuple[QueryKey, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.input.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingResult:
    """The device's answer to a plan.

    Args:
      tensors: one for each row, in order, float32:
        embed, classify              (num_outputs,), or (dimensions,)
        token_embed, token_classify  (num_tokens - left out, num_outputs)
        keep_as                      (0,)
        compare_with                 ()
      num_kept: number of results that the device keeps now.
    """

    step_id: int
    tensors: tuple[TensorBytes, ...]
    num_kept: int = 0
