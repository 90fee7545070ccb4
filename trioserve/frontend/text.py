"""Text in, text out: the renderer and the engine put together.

Render and engine do not know each other; this module composes them, once, for the HTTP
room and for programs that embed the engine. It knows no HTTP and no tensor.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial

import msgspec

from ..engine import StreamPhase, TokenEngine, TokenStream
from ..errors import InvalidParameter
from ..render import (
    Detokenizer,
    Renderer,
    check_stop_strings,
    count_characters,
)
from ..types.logits import LogitsProcessor
from ..types.output import TextDelta, TokenDelta
from ..types.prompt import Prompt
from ..types.sampling import ReasoningBudget, SamplingParams
from .served import ServedModel

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARACTERS = 1024
# As of max_tokens.
MAX_THINKING_TOKEN_BUDGET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParams:
    """How token ids become text, and which text ends a sequence or its reasoning.

    Args:
      stop: strings that end a sequence, wherever they stand relative to tokens.
      include_stop_str_in_output: keep what ended it, be it a string or a token.
      skip_special_tokens: leave out tokens such as <|im_end|>.
      thinking_token_budget: tokens of reasoning after which a chat's answer begins; None
        leaves that to the model.

    Raises:
      InvalidParameter: `stop` has an empty string, or too many or too long ones, or the
        budget is below 0.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidParameter("stop", f"at most {MAX_STOP_STRINGS} are taken")
        if not all(0 < len(text) <= MAX_STOP_STRING_CHARACTERS for text in self.stop):
            raise InvalidParameter(
                "stop",
                f"each must have 1 to {MAX_STOP_STRING_CHARACTERS} characters",
            )
        check_stop_strings(self.stop)
        budget = self.thinking_token_budget
        if budget is not None and not 0 <= budget <= MAX_THINKING_TOKEN_BUDGET:
            raise InvalidParameter(
                "thinking_token_budget",
                f"must be between 0 and {MAX_THINKING_TOKEN_BUDGET}, got {budget}",
            )


class TextStream:
    """An async iterator over the text of one request's sequences.

    Args:
      open_detokenizer: called with a sequence's index when its first tokens come. A
        request of thousands of sequences would hold the event loop up if it made all
        its detokenizers at once.

    Attributes:
      splits_reasoning: reasoning is told apart.
    """

    def __init__(
        self,
        tokens: TokenStream,
        open_detokenizer: Callable[[int], Detokenizer],
        prompts: Sequence[Prompt],
        text: TextParams,
        *,
        num_sequences: int,
        splits_reasoning: bool = False,
    ) -> None:
        self._tokens = tokens
        self._open_detokenizer = open_detokenizer
        self._detokenizers: dict[int, Detokenizer] = {}
        self._text = text
        self.prompts = prompts
        self.num_sequences = num_sequences
        self.splits_reasoning = splits_reasoning

    @property
    def phase(self) -> StreamPhase:
        """How far the sequence has come that has come farthest."""
        return self._tokens.phase

    @property
    def started_at(self) -> float | None:
        """When the first step with one of the sequences began; None before."""
        return self._tokens.started_at

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> TextDelta:
        return self._render(await self._tokens.__anext__())

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
            # them at once would hold the event loop up.
            if delta.finish_reason is not None:
                gathered[delta.index] = [TextDelta.join(parts)]
        # Invariant: the last delta of a sequence, and no other, has a finish reason.
        return [whole for [whole] in gathered]

    def _render(self, tokens: TokenDelta) -> TextDelta:
        detokenizer = self._find_detokenizer(tokens.index)
        text = detokenizer.push(self._visible_ids(tokens))
        if text.finish_reason is not None:
            self._tokens.stop(tokens.index)
        elif tokens.finish_reason is not None:
            text = self._finish(tokens, text, detokenizer.finish())
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

    def _find_detokenizer(self, index: int) -> Detokenizer:
        if index not in self._detokenizers:
            self._detokenizers[index] = self._open_detokenizer(index)
        return self._detokenizers[index]

    def _visible_ids(self, delta: TokenDelta) -> tuple[int, ...]:
        # The token that ended the sequence is no part of the answer.
        ended_by_token = delta.finish_reason == "stop"
        if ended_by_token and not self._text.include_stop_str_in_output:
            return delta.token_ids[:-1]
        return delta.token_ids


class TextEngine(ServedModel[TokenEngine, Renderer]):
    """A model that generates text; open_engine gives one.

    Args:
      engine, renderer: see ServedModel.
      logits_processors: the plug-ins that the engine's device has.
    """

    def __init__(
        self,
        engine: TokenEngine,
        renderer: Renderer,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        super().__init__(engine, renderer)
        self._processors = {each.name: each for each in logits_processors}
        self._defaults = SamplingParams(**dict(engine.info.default_sampling))  # type: ignore[arg-type]

    @contextmanager
    def admit(self, num_sequences: int, num_characters: int) -> Iterator[None]:
        """Let a request in before anything is made for it; the block renders it.

        Args:
          num_sequences: that it asks for.
          num_characters: of its text, about.

        Raises: what TokenEngine.check_room raises, and
          RendererFull: too many requests are rendered, or wait for it.
        """
        self.engine.check_room(num_sequences)
        with self.renderer.room.enter(num_characters):
            yield

    @asynccontextmanager
    async def open_text(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        text: TextParams,
        *,
        priority: int = 0,
        splits_reasoning: bool = False,
    ) -> AsyncIterator[TextStream]:
        """Generate from rendered prompts until the block is left.

        Args:
          splits_reasoning: tell reasoning apart, if the server does that; for chats.

        Raises: what TokenEngine.open_stream raises, and
          InvalidParameter: a budget is asked for where nothing tells reasoning apart, or
            a plug-in refuses its arguments.
        """
        if text.thinking_token_budget is not None:
            if not splits_reasoning:
                raise InvalidParameter(
                    "thinking_token_budget", "is only taken for chats"
                )
            thinking = self._limit_thinking(prompts, text.thinking_token_budget)
            sampling = replace(sampling, thinking=thinking)
        await self._check_arguments(sampling)

        def open_detokenizer(index: int) -> Detokenizer:
            return self.renderer.open_detokenizer(
                prompts[index // sampling.n],
                stop=text.stop,
                include_stop_str_in_output=text.include_stop_str_in_output,
                skip_special_tokens=text.skip_special_tokens,
                min_tokens=sampling.min_tokens,
                splits_reasoning=splits_reasoning,
            )

        async with self.engine.open_stream(
            prompts, sampling, priority=priority
        ) as tokens:
            yield TextStream(
                tokens,
                open_detokenizer,
                prompts,
                text,
                num_sequences=len(prompts) * sampling.n,
                splits_reasoning=splits_reasoning
                and self.renderer.reasoning is not None,
            )

    def _limit_thinking(
        self, prompts: Sequence[Prompt], num_tokens: int
    ) -> ReasoningBudget | None:
        tags = self.renderer.reasoning
        if tags is None:
            raise InvalidParameter("thinking_token_budget", "needs --reasoning-parser")
        places = {tags.find_place(prompt.text) for prompt in prompts}
        if len(places) != 1:
            raise ValueError("the prompts of one budget must end alike")
        place = places.pop()
        # The template has ended the reasoning before it began.
        if place == "after":
            return None
        return ReasoningBudget(
            num_tokens=num_tokens,
            start_token_ids=tags.start_token_ids,
            end_token_ids=tags.end_token_ids,
            is_open=place == "opened",
        )

    @asynccontextmanager
    async def open_completion(
        self, prompt: str, **options: object
    ) -> AsyncIterator[TextStream]:
        """Continue a text.

        Args:
          prompt: with the tokenizer's own special tokens put before it.
          options: fields of SamplingParams and TextParams, and `priority`; what is
            missing comes from the model's generation_config.

        Raises:
          TypeError: an option is unknown.
          TrioserveError: see errors.py.
        """
        sampling, text, priority = self._split(options)
        with self.admit(sampling.n, len(prompt)):
            rendered = await self.renderer.render_text(prompt)
        async with self.open_text(
            [rendered], sampling, text, priority=priority
        ) as stream:
            yield stream

    @asynccontextmanager
    async def open_chat(
        self, messages: Sequence[Mapping[str, object]], **options: object
    ) -> AsyncIterator[TextStream]:
        """Answer a conversation; `options` as in open_completion.

        Args:
          messages: {"role": ..., "content": ...} each, oldest first; content is a text
            or a list of OpenAI's parts, images among them where the model sees any.
        """
        sampling, text, priority = self._split(options)
        with self.admit(sampling.n, count_characters(messages)):
            rendered = await self.renderer.render_chat(messages)
        async with self.open_text(
            [rendered], sampling, text, priority=priority, splits_reasoning=True
        ) as stream:
            yield stream

    async def _check_arguments(self, sampling: SamplingParams) -> None:
        """Let plug-ins look at what they are asked for: the last time they can refuse.

        Raises:
          InvalidParameter: one does; what else it raises is a defect of its own.
        """
        # Names that nobody has are the engine's to refuse.
        named = [p for p in sampling.logits_processors if p[0] in self._processors]
        if named:
            await self.renderer.workers.run(partial(self._read_arguments, named))

    def _read_arguments(self, named: list[tuple[str, Mapping[str, object]]]) -> None:
        for name, arguments in named:
            try:
                self._processors[name].read_arguments(arguments)
            except ValueError as error:
                raise InvalidParameter(
                    f"logits_processors.{name}", str(error) or "wrong arguments"
                ) from None

    def _split(
        self, options: Mapping[str, object]
    ) -> tuple[SamplingParams, TextParams, int]:
        options = dict(options)
        priority = options.pop("priority", 0)
        if not isinstance(priority, int):
            raise TypeError("priority must be an int")
        text = {
            field.name: options.pop(field.name)
            for field in fields(TextParams)
            if field.name in options
        }
        for name in options.keys() - {field.name for field in fields(SamplingParams)}:
            raise TypeError(f"there is no option {name!r} of a request")
        return (
            replace(self._defaults, **options),  # type: ignore[arg-type]
            TextParams(**text),  # type: ignore[arg-type]
            priority,
        )
