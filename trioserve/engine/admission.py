"""What is checked before a request may enter: afterwards nothing can fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ContextLengthExceeded, InvalidParameter
from ..steps import ModelInfo, Prompt, SamplingParams


def check_request(
    prompts: Sequence[Prompt], sampling: SamplingParams, info: ModelInfo
) -> None:
    """Refuse what the model cannot compute.

    Raises:
      InvalidParameter: a token id lies outside the vocabulary, or there is no prompt.
      ContextLengthExceeded: a prompt with its max_tokens is longer than the model.
    """
    if not prompts:
        raise InvalidParameter("prompt", "must not be empty")
    for prompt in prompts:
        _check_token_ids("prompt", prompt.token_ids, info.vocab_size)
        _check_length(prompt, sampling, info.max_model_len)
    _check_token_ids("stop_token_ids", sampling.stop_token_ids, info.vocab_size)
    biased = tuple(token_id for token_id, _ in sampling.logit_bias)
    _check_token_ids("logit_bias", biased, info.vocab_size)


def resolve_sampling(
    prompt: Prompt, sampling: SamplingParams, info: ModelInfo
) -> SamplingParams:
    """Give max_tokens the value that None stands for: what the model's length leaves."""
    if sampling.max_tokens is not None:
        return sampling
    room = info.max_model_len - len(prompt.token_ids)
    return replace(sampling, max_tokens=room, min_tokens=min(sampling.min_tokens, room))


def _check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise InvalidParameter(
            param, f"token ids must be between 0 and {vocab_size - 1}"
        )


def _check_length(prompt: Prompt, sampling: SamplingParams, limit: int) -> None:
    num_tokens = len(prompt.token_ids)
    max_tokens = sampling.max_tokens or 0
    if num_tokens + max(1, max_tokens) > limit:
        raise ContextLengthExceeded(
            num_tokens=num_tokens,
            limit=limit,
            max_tokens=max_tokens,
            param="prompt" if num_tokens >= limit else "max_tokens",
        )
