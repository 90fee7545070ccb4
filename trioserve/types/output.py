"""The results of one step, from the device to the readers of a stream.

They are msgspec structs, because one of each is made for every row of every step; see
plan.py.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .ids import SequenceId

FinishReason = Literal["stop", "length", "abort"]


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log probabilities at one position, under the raw distribution of the model.

    Args:
      token_id: the token that stands there.
      logprob: natural logarithm; under the unmodified softmax, as vLLM's
        raw_logprobs.
      rank: 1 for the most likely token.
      top: (token id, logprob) of the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


# Fills a row of StepResult.sampled up to the length of others.
NOT_SAMPLED = -1


class StepResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the device gave back for a plan.

    Args:
      sampled: the new token ids of each row with `sample`, in batch order: one, or as
        many as the device could tell at once, or none where it had to give the row up;
        from NOT_SAMPLED on a row says nothing.
      logprobs: slot -> one for each of its new tokens, where they were asked for.
      prompt_logprobs: slot -> logprobs of the prompt tokens at positions
        [start + 1, start + num_tokens], as far as they lie inside the prompt.
    """

    step_id: int
    sampled: tuple[tuple[int, ...], ...]
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step added to a sequence: the scheduler's answer to a result.

    An empty one tells that a step has begun with the sequence.
    """

    sequence_id: SequenceId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an open stream yields: new tokens of one of its sequences.

    Args:
      index: prompt number * n + sequence number within the prompt.
      token_ids: new output ids; the token that ended the sequence is the last one.
      logprobs: one for each of token_ids if they were asked for.
      prompt_logprobs: for prompt tokens 1, 2, ...; all before the first output token.
      num_cached_tokens: prompt tokens found in the prefix cache.
      finish_reason: set in a sequence's last delta.
      stop_token_id: the token that ended it, unless that was the model's own EOS.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
