"""The events of a streamed completion."""

from __future__ import annotations

import msgspec

from ...types.output import TextDelta, TokenLogprobs
from ..shared.chunks import ChunkEvents, ChunkFields, Chunks, StreamHeader, write_event
from .answers import Choices, CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from .request import CompletionRequest


class CompletionChunks(Chunks[CompletionLogprobs]):
    """Writes the events of one choice of a streamed completion."""

    def _write(self, text: str, fields: ChunkFields[CompletionLogprobs]) -> bytes:
        choice = CompletionChunkChoice(
            index=self._index,
            prompt_token_ids=fields.prompt_token_ids,
            text=text,
            logprobs=fields.logprobs,
            finish_reason=fields.finish_reason,
            stop_reason=fields.stop_reason,
            token_ids=fields.token_ids,
        )
        header = self._header
        chunk = CompletionChunk(
            id=header.id,
            created=header.created,
            model=header.model,
            system_fingerprint=header.system_fingerprint,
            choices=(choice,),
            usage=fields.usage or header.no_usage,
        )
        return write_event(chunk)


class CompletionEvents(ChunkEvents[CompletionRequest, CompletionChunks]):
    """Writes the events of a streamed completion."""

    chunk_type = CompletionChunk

    def __init__(self, header: StreamHeader, choices: Choices) -> None:
        super().__init__(choices.body, header, choices.meter)
        self._choices = choices
        # Log probabilities of prompts come in parts, before the first token.
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}

    def write_all(self, delta: TextDelta) -> bytes:
        choices = self._choices
        if delta.prompt_logprobs:
            before = self._prompt_logprobs.get(delta.index, ())
            self._prompt_logprobs[delta.index] = before + delta.prompt_logprobs
        if not (delta.token_ids or delta.finish_reason):
            return b""
        is_first = choices.begins(delta)
        delta = msgspec.structs.replace(
            delta, prompt_logprobs=self._prompt_logprobs.pop(delta.index, ())
        )
        text = choices.echo(delta.index) + delta.text if is_first else delta.text
        logprobs = choices.report(delta, with_prompt=is_first)
        shows_ids = self.body.return_token_ids
        if not (text or delta.finish_reason or logprobs or shows_ids):
            return b""
        ids = choices.list_ids(delta, with_prompt=is_first) if shows_ids else None
        prompt = choices.prompt(delta.index)
        return self._find_chunks(delta.index).text(
            text,
            logprobs=logprobs,
            token_ids=ids,
            prompt_token_ids=prompt.token_ids if shows_ids and is_first else None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            usage=self.current_usage(),
        )

    def _find_chunks(self, index: int) -> CompletionChunks:
        # Each is made when it is needed, because there may be thousands of choices.
        if index not in self.chunks:
            self.chunks[index] = CompletionChunks(self.header, index)
        return self.chunks[index]
