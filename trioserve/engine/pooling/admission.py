"""The checks of an input before it enters the engine; afterwards nothing can fail."""

from __future__ import annotations

from ...errors import ContextLengthExceeded, InvalidParameter, TaskNotServed
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInfo, PoolingInput, PoolingParams


def check_params(
    params: PoolingParams,
    info: ModelInfo,
    pooling: PoolingInfo,
    *,
    param: str = "dimensions",
) -> None:
    """Refuse parameters that the model does not serve.

    Args:
      param: the request's field with the size of vectors, for errors.

    Raises:
      TaskNotServed: the model serves other tasks.
      InvalidParameter: the model has no vectors of this size.
    """
    if params.task not in pooling.tasks:
        served = ", ".join(pooling.tasks)
        raise TaskNotServed(info.name, wanted=params.task, served=served)
    if params.dimensions is None:
        return
    if params.task not in ("embed", "token_embed"):
        raise InvalidParameter(param, f"is not taken for the task {params.task}")
    _check_size(params.dimensions, info.name, pooling, param)


def check_input(each: PoolingInput, info: ModelInfo, param: str = "input") -> None:
    """Refuse an input that the model cannot read.

    Raises:
      InvalidParameter: it is empty, or a token id lies outside the vocabulary.
      ContextLengthExceeded: it is longer than the model allows.
    """
    # Imported here because it takes a tenth of a second, which would delay --help.
    import numpy

    if each.num_tokens == 0:
        raise InvalidParameter(param, "must not be empty")
    if each.num_tokens > info.max_model_len:
        raise ContextLengthExceeded(
            num_tokens=each.num_tokens, limit=info.max_model_len, param=param
        )
    # As unsigned numbers, negative ids lie far above every vocabulary.
    if numpy.frombuffer(each.token_ids, numpy.uint32).max() >= info.vocab_size:
        raise InvalidParameter(
            param, f"token ids must be between 0 and {info.vocab_size - 1}"
        )


def _check_size(size: int, name: str, pooling: PoolingInfo, param: str) -> None:
    """Refuse a size that vectors cannot be cut to, in the words of vLLM 0.33."""
    sizes = pooling.matryoshka
    if sizes is None:
        reason = (
            f"Model '{name}' does not support Matryoshka embeddings; {param} must be "
            f"unset (received {param}={size})."
        )
    elif not 1 <= size <= pooling.num_outputs:
        reason = (
            f"Model '{name}' only supports {param} in range "
            f"[1, {pooling.num_outputs}], got {size}."
        )
    elif sizes and size not in sizes:
        reason = (
            f"Model '{name}' only supports Matryoshka dimensions {list(sizes)}, got "
            f"{size}."
        )
    else:
        return
    raise InvalidParameter(param, reason)
