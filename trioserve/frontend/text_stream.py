"""The text of one request, sequence by sequence, and its parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
import math

import msgspec
import trio

from ..engine.generation.token_stream import StreamPhase, TokenStream
from ..errors import InvalidParameter
from ..render import MAX_STOP_CHARACTERS, SequenceText
from ..types.output import TextDelta, TokenDelta
from ..types.prompt import Prompt
from ..types.structured import StructuredOutput
from .served import StreamLimits

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARACTERS = 1024
# The same limit as for max_tokens.
MAX_THINKING_TOKEN_BUDGET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParams:
    """Parameters of the way from token ids to text.

    Args:
      stop: strings that end a sequence; they may begin and end inside tokens.
      include_stop_str_in_output: keep the stop string, or the text of the stop token.
      skip_special_tokens: leave out tokens such as <|im_end|>.
      thinking_token_budget: tokens of reasoning after which a chat's answer begins; None
        sets no limit.
      parallel_tool_calls: a sequence may call several tools; otherwise it ends behind its
        first call.
      forced_tools: names of the tools of which a sequence must call one, or several; none
        leaves it free.
      structured: the form that the text of the answer must have; None leaves it free. An
        answer of forced calls has no text.

    Raises:
      InvalidParameter: the strings of `stop` are too long together, or the budget is negative.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    thinking_token_budget: int | None = None
    parallel_tool_calls: bool = True
    forced_tools: frozenset[str] = frozenset()
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        if sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            raise InvalidParameter(
                "stop", f"at most {MAX_STOP_CHARACTERS} characters in all are taken"
            )
        budget = self.thinking_token_budget
        if budget is not None and not 0 <= budget <= MAX_THINKING_TOKEN_BUDGET:
            raise InvalidParameter(
                "thinking_token_budget",
                f"must be between 0 and {MAX_THINKING_TOKEN_BUDGET}, got {budget}",
            )

    def check_stop(self) -> None:
        """Check each stop string of a program that embeds the engine.

        The types of the API's fields check those of clients, and name the wrong one.

        Raises:
          InvalidParameter: one is empty or too long, or there are too many.
        """
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParameter("stop", f"at most {MAX_STOP_STRINGS} are possible")
        if not all(0 < len(text) <= MAX_STOP_STRING_CHARACTERS for text in self.stop):
            raise InvalidParameter(
                "stop",
                f"each must have 1 to {MAX_STOP_STRING_CHARACTERS} characters",
            )


class TextStream:
    """An async iterator over the text of one request's sequences.

    Args:
      tokens: the tokens of the sequences.
      open_detokenizer: is called with a sequence's index when its first tokens come. A
        request of thousands of sequences would hold up the event loop if it made all
        detokenizers at once.
      limits: the time that the stream may take.

    Attributes:
      splits_reasoning: the text of the answer has no reasoning in it; deltas have the
        reasoning in a field of its own.
      splits_tool_calls: the same for tool calls.
    """

    def __init__(
        self,
        tokens: TokenStream,
        open_detokenizer: Callable[[int], SequenceText],
        prompts: Sequence[Prompt],
        text: TextParams,
        *,
        limits: StreamLimits = StreamLimits(),
        num_sequences: int,
        splits_reasoning: bool = False,
        splits_tool_calls: bool = False,
    ) -> None:
        self._tokens = tokens
        self._open_detokenizer = open_detokenizer
        self._detokenizers: dict[int, SequenceText] = {}
        self._finished: set[int] = set()
        # The last deltas of the sequences that a deadline has ended.
        self._cut: deque[TextDelta] = deque()
        self._text = text
        self._limits = limits
        self.prompts = prompts
        self.num_sequences = num_sequences
        self.splits_reasoning = splits_reasoning
        self.splits_tool_calls = splits_tool_calls

    @property
    def phase(self) -> StreamPhase:
        """The phase of the most advanced sequence."""
        return self._tokens.phase

    @property
    def started_at(self) -> float | None:
        """The begin of the first step with one of the sequences; None before."""
        return self._tokens.started_at

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> TextDelta:
        limits, tokens = self._limits, self._tokens
        while not self._cut:
            until = limits.ends_at
            if tokens.phase == "queue":
                until = min(until, limits.starts_by)
            # Most streams have no limit. They do without a scope for each delta.
            if until == math.inf:
                return self._render(await tokens.__anext__())
            with trio.move_on_at(until):
                return self._render(await tokens.__anext__())
            self._note_time()
        return self._cut.popleft()

    def taking(self, take: Callable[[], bool]) -> AbstractContextManager[None]:
        """See TokenStream.taking."""
        return self._tokens.taking(take)

    @property
    def has_pending(self) -> bool:
        """True if there is an unread delta."""
        return self._tokens.has_pending

    @property
    def num_unread_bytes(self) -> int:
        """The approximate memory of the unread deltas."""
        return self._tokens.num_unread_bytes

    def take_nowait(self) -> TextDelta:
        """Take the next delta.

        Raises:
          trio.WouldBlock: there is none now.
        """
        return self._render(self._tokens.take_nowait())

    async def collect(
        self, on_delta: Callable[[TextDelta], None] | None = None
    ) -> list[TextDelta]:
        """Read to the end; returns each whole sequence, by index.

        Args:
          on_delta: called with each delta when it comes.
        """
        gathered: list[list[TextDelta]] = [[] for _ in range(self.num_sequences)]
        async for delta in self:
            if on_delta is not None:
                on_delta(delta)
            parts = gathered[delta.index]
            parts.append(delta)
            # Sequences are joined as they end. There may be thousands, and joining all of
            # them at once would hold up the event loop.
            if delta.finish_reason is not None:
                gathered[delta.index] = [TextDelta.join(parts)]
        # Invariant: the last delta of a sequence, and no other, has a finish reason.
        return [whole for [whole] in gathered]

    def fail(self, error: Exception) -> None:
        """End all sequences now, and raise `error` in the reader."""
        self._tokens.fail(error)
        for index in range(self.num_sequences):
            self._tokens.stop(index, is_complete=False)

    def _note_time(self) -> None:
        """End the sequences if the deadline has passed.

        Raises:
          DeadlineExceeded: the request is still in the queue, and may be no longer.
        """
        if trio.current_time() >= self._limits.ends_at:
            self._cut.extend(self._end_open_sequences())
        elif self.phase == "queue":
            raise self._limits.refuse_queue()

    def _end_open_sequences(self) -> Iterator[TextDelta]:
        for index in range(self.num_sequences):
            if index not in self._finished:
                self._tokens.stop(index, is_complete=False)
                rest = self._find_detokenizer(index).finish(is_cut=True)
                yield msgspec.structs.replace(
                    rest, index=index, finish_reason=rest.finish_reason or "deadline"
                )

    def _render(self, tokens: TokenDelta) -> TextDelta:
        index, token_ids = tokens.index, tokens.token_ids
        detokenizer = self._find_detokenizer(index)
        # The token that ended the sequence is not part of the answer.
        if tokens.finish_reason == "stop" and not self._text.include_stop_str_in_output:
            token_ids = token_ids[:-1]
        text = detokenizer.push(token_ids)
        if text.finish_reason is not None:
            self._tokens.stop(tokens.index, is_complete=True)
        elif tokens.finish_reason is not None:
            is_cut = tokens.finish_reason != "stop"
            text = self._finish(tokens, text, detokenizer.finish(is_cut=is_cut))
        if text.finish_reason is not None:
            self._finished.add(tokens.index)
        has_more = tokens.logprobs or tokens.prompt_logprobs or tokens.num_cached_tokens
        if not (index or has_more):
            return text
        return msgspec.structs.replace(
            text,
            index=tokens.index,
            logprobs=tokens.logprobs[: len(text.token_ids)],
            prompt_logprobs=tokens.prompt_logprobs,
            num_cached_tokens=tokens.num_cached_tokens,
        )

    def _finish(
        self, tokens: TokenDelta, text: TextDelta, rest: TextDelta
    ) -> TextDelta:
        """Return the last text of a sequence that the engine has ended."""
        text = TextDelta.join([text, rest])
        # The held back text may have completed a stop string.
        stopped = text.finish_reason is not None
        return msgspec.structs.replace(
            text,
            token_ids=tokens.token_ids,
            finish_reason=text.finish_reason if stopped else tokens.finish_reason,
            stop_reason=text.stop_reason if stopped else tokens.stop_token_id,
        )

    def _find_detokenizer(self, index: int) -> SequenceText:
        if index not in self._detokenizers:
            self._detokenizers[index] = self._open_detokenizer(index)
        return self._detokenizers[index]
