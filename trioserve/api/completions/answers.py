"""The answers to completions, in the shapes that clients of OpenAI and vLLM read.

Which fields are sent is told in chat/answers.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...http.record.stream_meter import StreamMeter
from ...http.record.usage import RequestMetrics, Usage
from ...render import Renderer, TextOffsets
from ...types.output import TextDelta, TokenLogprobs
from ...types.prompt import Prompt
from ..shared.chunks import StreamHeader
from ..shared.logprobs import (
    PromptLogprobs,
    TokenTexts,
    build_prompt_logprobs,
    encode_if_long,
    floor_logprob,
    show_id,
)
from .request import CompletionRequest


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities in the legacy form: lists side by side."""

    text_offset: tuple[int, ...]
    token_logprobs: tuple[float | None, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float] | None, ...]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/completions; for kv_transfer_params see ChatCompletion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[CompletionChoice, ...]
    usage: Usage
    metrics: RequestMetrics | UnsetType = UNSET
    kv_transfer_params: None = None


class CompletionChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a continuation in one chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a streamed completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: tuple[CompletionChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET


class Choices:
    """Builds the fields of choices: their echo, log probabilities and text offsets."""

    def __init__(
        self,
        body: CompletionRequest,
        meter: StreamMeter,
        texts: TokenTexts,
        renderer: Renderer,
    ) -> None:
        self.body = body
        self.meter = meter
        self._texts = texts
        self._renderer = renderer
        self._num_per_prompt = meter.stream.num_sequences // len(meter.prompts)
        self._begun: set[int] = set()
        # By choice, if it has log probabilities.
        self._offsets: dict[int, TextOffsets] = {}

    def prompt(self, index: int) -> Prompt:
        return self.meter.prompts[index // self._num_per_prompt]

    def begins(self, delta: TextDelta) -> bool:
        """Return whether this is the choice's first delta; true once."""
        if delta.index in self._begun:
            return False
        self._begun.add(delta.index)
        return True

    def echo(self, index: int) -> str:
        return (self.prompt(index).text or "") if self.body.echo else ""

    def list_ids(self, delta: TextDelta, *, with_prompt: bool) -> tuple[int, ...]:
        """Return the token ids of a delta, after an echoed prompt's ids."""
        if with_prompt and self.body.echo:
            return self.prompt(delta.index).token_ids + delta.token_ids
        return delta.token_ids

    def report(
        self, delta: TextDelta, *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        """Return the log probabilities of a delta, after an echoed prompt's."""
        if self.body.logprobs is None:
            return None
        token_ids = self.list_ids(delta, with_prompt=with_prompt)
        offsets = self._find_offsets(delta.index).push(delta)
        logprobs: tuple[TokenLogprobs | None, ...] = delta.logprobs
        if with_prompt and self.body.echo:
            prompt = self.prompt(delta.index)
            offsets = self._renderer.locate_tokens(prompt) + offsets
            # Nothing predicted the prompt's first token.
            logprobs = (None, *delta.prompt_logprobs, *logprobs)
        # A deadline may have come before all of a prompt was computed.
        if not logprobs or len(logprobs) < len(token_ids):
            return None
        return build_completion_logprobs(token_ids, logprobs, self._texts, offsets)

    def _find_offsets(self, index: int) -> TextOffsets:
        if index not in self._offsets:
            self._offsets[index] = self._renderer.open_offsets(
                self.prompt(index),
                skip_special_tokens=self.body.skips_special_tokens,
                begin=len(self.echo(index)),
            )
        return self._offsets[index]

    def build(self, whole: TextDelta) -> CompletionChoice:
        body, prompt = self.body, self.prompt(whole.index)
        shows_ids = body.return_token_ids
        return CompletionChoice(
            index=whole.index,
            text=self.echo(whole.index) + whole.text,
            logprobs=self.report(whole, with_prompt=True),
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            token_ids=self.list_ids(whole, with_prompt=True) if shows_ids else UNSET,
            prompt_token_ids=prompt.token_ids if shows_ids else UNSET,
            prompt_logprobs=(
                None
                if body.prompt_logprobs is None
                else build_prompt_logprobs(whole.prompt_logprobs, self._texts)
            ),
        )


def build_answer(
    header: StreamHeader, choices: Choices, completed: Sequence[TextDelta]
) -> Completion:
    """Build a whole answer."""
    return Completion(
        id=header.id,
        created=header.created,
        model=header.model,
        system_fingerprint=header.system_fingerprint,
        choices=tuple(choices.build(whole) for whole in completed),
        usage=choices.meter.usage,
        metrics=choices.meter.metrics if choices.body.return_metrics else UNSET,
    )


def build_completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    texts: TokenTexts,
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """Report tokens in the legacy form.

    Args:
      logprobs: one for each token; None for the first token of an echoed prompt.
      offsets: where the tokens begin in the text of the choice, in characters.
    """
    return CompletionLogprobs(
        text_offset=tuple(offsets),
        token_logprobs=tuple(
            floor_logprob(entry.logprob) if entry else None for entry in logprobs
        ),
        tokens=tuple(map(texts.show, token_ids)),
        top_logprobs=tuple(
            encode_if_long(entry, _map_top(entry, texts)) if entry else None
            for entry in logprobs
        ),
    )


def _map_top(entry: TokenLogprobs, texts: TokenTexts) -> dict[str, float]:
    # As in vLLM, the token itself comes first, and only once.
    ranked = {entry.token_id: entry.logprob, **dict(entry.top)}
    top: dict[str, float] = {}
    for token_id, logprob in ranked.items():
        name = texts.show(token_id)
        # The parts of a character have the same text.
        top[show_id(token_id) if name in top else name] = floor_logprob(logprob)
    return top
