"""The numbers of tokens and the times of a request."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of an answer's tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
        num_cached_tokens: int,
        num_reasoning_tokens: int | None = None,
    ) -> Usage:
        """Make the usage; without reasoning tokens if the server does not split them off."""
        return cls(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=num_prompt_tokens + num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
            completion_tokens_details=(
                UNSET
                if num_reasoning_tokens is None
                else CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens)
            ),
        )

    def without(self, num_output_tokens: int) -> Usage:
        """Return the usage before the last output tokens."""
        return msgspec.structs.replace(
            self,
            completion_tokens=self.completion_tokens - num_output_tokens,
            total_tokens=self.total_tokens - num_output_tokens,
        )


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a request, with vLLM's names; null if there is none.

    Args:
      queue_time_ms: the wait in the engine's queue.
      time_to_first_token_ms: from the first step to the first token.
      generation_time_ms: from the first token to the last one.
      mean_itl_ms: from one token of a sequence to the next.
      tokens_per_second: all tokens, by the time from the first step to the last token.
    """

    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
