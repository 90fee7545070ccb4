"""Log probabilities of answers, in the form of chats, and of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
import itertools
from typing import Final, TypeVar, cast

import msgspec

from ...http.wire.error_body import encode
from ...types.output import TextDelta, TokenLogprobs

T = TypeVar("T")

# JSON has no infinity. OpenAI and vLLM, too, report this for impossible tokens.
LOWEST_LOGPROB: Final = -9999.0

# Writing a choice without log probabilities takes as long as so many of them.
_ENTRIES_PER_CHOICE: Final = 8

# Alternatives of a position. To encode so many takes 0.3 ms.
_LONG: Final = 1024

TokenBytes = Callable[[int], bytes]


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The sampled token of a position, and its alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities in chat's form."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate for one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


# One for each token of the prompt. The first is None, because nothing predicted it.
PromptLogprobs = tuple[dict[str, PromptLogprob] | None, ...]


def show_id(token_id: int) -> str:
    """Return the name of a token, in vLLM's form."""
    return f"token_id:{token_id}"


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The texts of tokens in log probabilities.

    Args:
      token_bytes: returns the bytes of a token, which may begin or end inside a
        character.
      as_token_ids: show `token_id:123` instead, for return_tokens_as_token_ids.
    """

    token_bytes: TokenBytes
    as_token_ids: bool = False

    def show(self, token_id: int) -> str:
        """Return the text of a token in a field where its id may replace it."""
        return show_id(token_id) if self.as_token_ids else self.text(token_id)

    def text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def bytes(self, token_id: int) -> tuple[int, ...]:
        return tuple(self.token_bytes(token_id))


def count_entries(deltas: Iterable[TextDelta]) -> int:
    """Return the number of entries of an answer, for run_writing."""
    return sum(
        _ENTRIES_PER_CHOICE + sum(1 + len(entry.top) for entry in entries)
        for entries in (
            itertools.chain(delta.logprobs, delta.prompt_logprobs) for delta in deltas
        )
    )


def build_chat_logprobs(
    logprobs: Iterable[TokenLogprobs], texts: TokenTexts
) -> ChatLogprobs:
    """Report sampled tokens in chat's form."""
    return ChatLogprobs(
        content=tuple(
            encode_if_long(entry, _build_position(entry, texts)) for entry in logprobs
        )
    )


def build_prompt_logprobs(
    logprobs: Iterable[TokenLogprobs], texts: TokenTexts
) -> PromptLogprobs:
    """Report a prompt's tokens in vLLM's form.

    Args:
      logprobs: of the prompt's tokens 1, 2, ...
    """
    return (
        None,
        *(encode_if_long(entry, _map_candidates(entry, texts)) for entry in logprobs),
    )


def encode_if_long(entry: TokenLogprobs, position: T) -> T:
    """Encode a position with many alternatives; the encoder of the answer copies it.

    One call of the encoder holds the interpreter. For the whole vocabulary at 20 positions
    that would be 0.3 seconds.
    """
    if len(entry.top) < _LONG:
        return position
    return cast(T, msgspec.Raw(encode(position)))


def _build_position(entry: TokenLogprobs, texts: TokenTexts) -> TokenLogprob:
    return TokenLogprob(
        token=texts.show(entry.token_id),
        logprob=floor_logprob(entry.logprob),
        bytes=texts.bytes(entry.token_id),
        top_logprobs=tuple(
            TopLogprob(
                token=texts.show(token_id),
                logprob=floor_logprob(logprob),
                bytes=texts.bytes(token_id),
            )
            for token_id, logprob in entry.top
        ),
    )


def _map_candidates(
    entry: TokenLogprobs, texts: TokenTexts
) -> dict[str, PromptLogprob]:
    ranked = [
        (entry.token_id, entry.logprob, entry.rank),
        *((token_id, logprob, i) for i, (token_id, logprob) in enumerate(entry.top, 1)),
    ]
    # The prompt's own token comes first, and only once.
    return {
        str(token_id): PromptLogprob(
            logprob=floor_logprob(logprob),
            rank=rank,
            decoded_token=texts.text(token_id),
        )
        for token_id, logprob, rank in ranked
    }


def floor_logprob(logprob: float) -> float:
    """Return a number that JSON has."""
    # With this order of arguments, NaN becomes the floor, too: JSON has no NaN.
    return max(LOWEST_LOGPROB, logprob)
