"""The results of one step, from the device to the readers of a stream.

They are msgspec structs, because each row of each step makes one of each; plan.py has the
measurement. A token passes through two of them:

    StepResult --> scheduler --> TokenDelta --> detokenizer --> TextDelta --> event
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import itertools
from typing import Literal, TypeVar

import msgspec

from .ids import SequenceId

T = TypeVar("T")

FinishReason = Literal["stop", "length", "repetition", "deadline"]


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log probabilities at one position, under the raw distribution of the model.

    Args:
      token_id: the token at this position.
      logprob: natural logarithm; under the unmodified softmax, as vLLM's
        raw_logprobs.
      rank: 1 for the most likely token.
      top: (token id, logprob) of the most likely tokens, most likely first, or of the token
        itself and the tokens that the request names, in its order.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


# Fills up the shorter rows of StepResult.sampled.
NOT_SAMPLED = -1


class SequenceError(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a sequence has ended without its answer.

    Args:
      reason: a message for the client; empty if the fault is ours. Then the log has it.
      param: the field of the request that is the reason.
      adapter: the name of its adapter, if that is not loaded any more.
    """

    reason: str = ""
    param: str | None = None
    adapter: str = ""

    @classmethod
    def exclude_all(cls, names: Sequence[str]) -> SequenceError:
        """Return the error of a sequence for which no token is left.

        Args:
          names: the fields of the request that exclude tokens; at least one.
        """
        reason = f"no token is left; all are excluded by {' and '.join(names)}"
        return cls(reason=reason, param=names[0])

    @property
    def is_internal(self) -> bool:
        return not (self.reason or self.adapter)


class StepResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The device's answer to a plan.

    Args:
      sampled: the new token ids of each row with `sample`, in batch order: usually one,
        several if the device samples several at once. A row without any was skipped: it
        is planned again, and has changed nothing of its slot but the keys and values at
        its positions. NOT_SAMPLED ends a row early.
      logprobs: slot -> one for each of its new tokens, if the request asked for them.
      prompt_logprobs: slot -> logprobs of the prompt tokens at positions
        [start + 1, start + num_tokens], as far as they lie inside the prompt.
      errors: slot -> why its sequence cannot go on; its row has no token.
      late: slots whose grammars are late: a row of theirs in the next step would probably
        be skipped.
    """

    step_id: int
    sampled: tuple[tuple[int, ...], ...]
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    errors: dict[int, SequenceError] = {}
    late: tuple[int, ...] = ()


class TokenDelta(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True
):
    """New tokens of one sequence, from the scheduler to the reader of a stream.

    Messages leave defaults out: with them decoding one takes three times as long.

    A delta without tokens and logprobs reports that a step with the sequence has begun;
    it does not reach the reader.

    Args:
      index: number of the sequence in its request: prompt number * n + sequence number
        within the prompt.
      token_ids: new output ids; the last one may be the token that ended the sequence.
      logprobs: one for each of token_ids, if the request asked for them.
      prompt_logprobs: for prompt tokens 1, 2, ...; all before the first output token.
      num_cached_tokens: prompt tokens found in the prefix cache.
      finish_reason: set in a sequence's last delta.
      stop_token_id: the token that ended it, unless that was the model's own EOS.
      error: why the sequence has ended without its answer; then this is its last delta
        and has no finish_reason.
    """

    sequence_id: SequenceId
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: SequenceError | None = None

    @classmethod
    def join(cls, deltas: Sequence[TokenDelta]) -> TokenDelta:
        """Join successive deltas of one sequence; at least one."""
        return msgspec.structs.replace(
            deltas[-1],
            token_ids=_chain([delta.token_ids for delta in deltas]),
            logprobs=_chain([delta.logprobs for delta in deltas]),
            prompt_logprobs=_chain([delta.prompt_logprobs for delta in deltas]),
        )


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of a tool call.

    Args:
      index: number of the call in its sequence, from 0.
      id: the id of the call; only in its first piece.
      name: the name of the function; only in its first piece.
      arguments: a piece of the JSON text of the arguments. The pieces of one call, joined
        in order, are a JSON object, unless the sequence ended within the call.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    @classmethod
    def join(cls, pieces: Sequence[ToolCallDelta]) -> ToolCallDelta:
        """Join successive pieces of one call; at least one."""
        return cls(
            index=pieces[0].index,
            id=pieces[0].id,
            name=pieces[0].name,
            arguments="".join(piece.arguments for piece in pieces),
        )


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New text of one sequence, from its detokenizer to the reader of a stream.

    Args:
      index: number of the sequence in its request: prompt number * n + sequence number
        within the prompt.
      text: complete characters, which no later delta changes; may be empty.
      reasoning: the reasoning of the model before its answer, if the server separates
        the two; it is not in `text`.
      num_reasoning_tokens: tokens that were found to be reasoning, including its tags.
      tool_calls: pieces of tool calls, at most one of each call, in the order of their
        indices; they are not in `text`. A call's text in the model's format is left out.
      token_ids: the tokens that were read, including the one that ended the sequence;
        their text may still be held back.
      logprobs, prompt_logprobs, num_cached_tokens: as in TokenDelta.
      finish_reason: set in a sequence's last delta.
      stop_reason: the stop string or stop token id that ended it.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    num_reasoning_tokens: int = 0
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @classmethod
    def join(cls, deltas: Sequence[TextDelta]) -> TextDelta:
        """Join successive deltas of one sequence; at least one."""
        return msgspec.structs.replace(
            deltas[-1],
            text="".join(delta.text for delta in deltas),
            reasoning="".join(delta.reasoning for delta in deltas),
            num_reasoning_tokens=sum(delta.num_reasoning_tokens for delta in deltas),
            tool_calls=_join_calls(delta.tool_calls for delta in deltas),
            token_ids=_chain(delta.token_ids for delta in deltas),
            logprobs=_chain(delta.logprobs for delta in deltas),
            prompt_logprobs=_chain(delta.prompt_logprobs for delta in deltas),
        )


def _join_calls(
    parts: Iterable[tuple[ToolCallDelta, ...]],
) -> tuple[ToolCallDelta, ...]:
    calls: dict[int, list[ToolCallDelta]] = {}
    for piece in itertools.chain.from_iterable(parts):
        calls.setdefault(piece.index, []).append(piece)
    return tuple(ToolCallDelta.join(pieces) for pieces in calls.values())


def _chain(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(itertools.chain.from_iterable(parts))
