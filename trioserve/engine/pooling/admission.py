"""The checks of an input before it enters the engine; afterwards nothing can fail."""

from __future__ import annotations

from ...errors import ContextLengthExceeded, InvalidParameter
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInput


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
