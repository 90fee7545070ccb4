"""The front end of models that generate: text in, text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
import math
from os.path import abspath, expanduser
from pathlib import Path
from typing import Final

from ..engine.generation.engine import TokenEngine
from ..engine.generation.forecast import Demand
from ..errors import DeadlineUnreachable, InvalidParameter, NotSupported
from ..render import (
    ChatOptions,
    Renderer,
    SequenceText,
    TookTooLong,
    ToolTable,
    count_characters,
)
from ..types.adapter import AdapterFacts, ServedAdapter
from ..types.client import Client
from ..types.logits import LogitsProcessor
from ..types.model_info import strip_tag
from ..types.prompt import Prompt, count_tokens
from ..types.sampling import SamplingParams
from .model_formats import ModelFormats
from .served import ServedModel, StreamLimits
from .text_stream import TextParams, TextStream

# The time that plug-ins may take for the arguments of a request, which are a few numbers.
ARGUMENT_SECONDS: Final = 10.0


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
        self._formats = ModelFormats(renderer)
        self._defaults = SamplingParams(**dict(engine.info.default_sampling))  # type: ignore[arg-type]
        # The name of the adapter of a view.
        self._adapter = ""
        # Of the model: the views of adapters, by their names.
        self._views: dict[str, tuple[ServedAdapter, TextEngine]] = {}

    @property
    def adapters(self) -> Mapping[str, ServedAdapter]:
        """The loaded adapters, by their names."""
        return self.engine.adapters

    async def load_adapter(
        self, name: str, path: str | Path, *, load_inplace: bool = False
    ) -> AdapterFacts:
        """Load an adapter (LoRA) beside the running requests, which may then name it.

        Args:
          name: no name of the model.
          path: a folder in peft's format, or a GGUF file.
          load_inplace: the name may be loaded already. Its open requests go on as they began.

        Raises:
          AdapterRefused: the name cannot be used, or there are too many adapters.
          InvalidAdapter: its files are wrong, or the model cannot run it.
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        whole = _make_absolute(path)
        loaded = await self.engine.load_adapter(name, whole, replaces=load_inplace)
        return loaded.facts

    async def unload_adapter(self, name: str) -> None:
        """Take no further requests for an adapter.

        Its memory is free when the last of its open requests has ended.

        Raises:
          AdapterNotFound
          EngineDied, EngineRestarting, ShuttingDown: no engine runs.
        """
        await self.engine.unload_adapter(name)

    def find(self, name: str) -> TextEngine | None:
        """Return the engine of a name that clients may use, or the view of an adapter.

        Raises:
          EngineRestarting: the adapter is being loaded again.
        """
        if self.info.has_name(name):
            return self
        adapter = self.adapters.get(name) or self.adapters.get(strip_tag(name))
        if adapter is None:
            self.engine.check_lost_adapter(strip_tag(name))
            return None
        kept, view = self._views.get(adapter.name, (None, self))
        if kept is not adapter:
            # Names may change for ever.
            for gone in self._views.keys() - self.adapters.keys():
                del self._views[gone]
            view = self.with_adapter(adapter)
            self._views[adapter.name] = adapter, view
        return view

    def with_adapter(self, adapter: ServedAdapter) -> TextEngine:
        """Return a view whose requests use an adapter. It shares everything with this engine."""
        view = copy(self)
        seed = f"{self.info.fingerprint};{adapter.facts.digest.hex()}"
        digest = blake2b(seed.encode(), digest_size=6)
        view.info = replace(
            self.info,
            name=adapter.name,
            other_names=(),
            source=adapter.path,
            fingerprint=f"fp_{digest.hexdigest()}",
        )
        view.parent, view._adapter = self.info.name, adapter.name
        return view

    def list_names(self) -> tuple[str, ...]:
        return *self.info.names, *self.adapters

    @contextmanager
    def admit(
        self,
        num_prompts: int,
        num_characters: int,
        sampling: SamplingParams,
        limits: StreamLimits = StreamLimits(),
        client: Client = Client(),
        *,
        num_ids: int = 0,
    ) -> Iterator[list[Prompt]]:
        """Admit a request before any work is done for it; the block renders it.

        Its tokens are estimated from its text. `open_text` looks at the time again when
        they are known.

        Args:
          num_characters: approximate length of its text; a token id counts as one.
          limits: the time that it may take.
          client: the one that it belongs to.
          num_ids: the number of these token ids.

        Yields:
          an empty list, for the prompts.

        Raises:
          all errors of TokenEngine.check_room, and
          DeadlineUnreachable: other requests would make it late.
          RendererFull: too many requests are being rendered, or wait for that.
        """
        longest = num_prompts * self.info.max_model_len
        num_tokens = num_ids + self._ratio.estimate(num_characters - num_ids)
        num_tokens = min(num_tokens, longest)
        self.engine.check_room(num_prompts * sampling.n, num_tokens, client)
        self._check_deadline(num_tokens, num_prompts, sampling, limits, client)
        prompts: list[Prompt] = []
        with self.renderer.room.enter(num_characters, client.name):
            yield prompts
        # Images and vectors have tokens, too, but no characters.
        if prompts and not any([prompt.embedded for prompt in prompts]):
            num_tokens = count_tokens(prompts) - num_ids
            self._ratio.learn(num_characters - num_ids, num_tokens)

    @asynccontextmanager
    async def open_text(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        text: TextParams,
        *,
        priority: int = 0,
        splits_reasoning: bool = False,
        tools: Sequence[Mapping[str, object]] = (),
        limits: StreamLimits = StreamLimits(),
        client: Client = Client(),
        adapter: str | None = None,
    ) -> AsyncIterator[TextStream]:
        """Generate from rendered prompts until the block is left.

        Args:
          adapter: the name of a loaded one; by default a view's own, and else none.
          limits: the time that the stream may take.
          client: the one that it belongs to.
          splits_reasoning: separate reasoning from the answer, if the server has a parser
            for that; for chats.
          tools: the tools that the prompts show to the model, as OpenAI's clients send
            them. Calls are separated from the answer, if the server has a parser for that.

        Raises:
          all errors of TokenEngine.open_stream, and
          DeadlineUnreachable: other requests would make it late.
          InvalidParameter: the request has a reasoning budget, but the server has no
            reasoning parser; a plug-in refuses its arguments; or a grammar cannot express
            the form of the answer.
          NotSupported: calls are forced, or parallel calls are forbidden, but the server has
            no parser for calls.
        """
        sampling = await self._formats.complete(
            sampling, prompts, text, tools, is_chat=splits_reasoning
        )
        if sampling.logits_processors:
            await self._check_arguments(sampling)

        # Other answers with a form of their own have no calls.
        is_joined = self._formats.can_join(tools, text)
        has_calls = text.structured is None or text.forced_tools or is_joined
        table = self._make_table(tools, text) if tools and has_calls else None

        def open_detokenizer(index: int) -> SequenceText:
            return self.renderer.open_detokenizer(
                prompts[index // sampling.n],
                stop=text.stop,
                include_stop_str_in_output=text.include_stop_str_in_output,
                skip_special_tokens=text.skip_special_tokens,
                min_tokens=sampling.min_tokens,
                splits_reasoning=splits_reasoning,
                tools=table,
                takes_one_call=not text.parallel_tool_calls,
                calls_lead=is_joined,
                calls_only=bool(text.forced_tools),
            )

        self._check_deadline(
            count_tokens(prompts), len(prompts), sampling, limits, client
        )
        async with self.engine.open_stream(
            prompts,
            sampling,
            priority=priority,
            client=client,
            adapter=self._adapter if adapter is None else adapter,
        ) as tokens:
            yield TextStream(
                tokens,
                open_detokenizer,
                prompts,
                text,
                limits=limits,
                num_sequences=len(prompts) * sampling.n,
                splits_reasoning=splits_reasoning and self.renderer.separates_reasoning,
                splits_tool_calls=table is not None,
            )

    def _check_deadline(
        self,
        num_tokens: int,
        num_prompts: int,
        sampling: SamplingParams,
        limits: StreamLimits,
        client: Client,
    ) -> None:
        """Refuse a request that other requests would make late.

        Raises:
          DeadlineUnreachable
        """
        if not limits.needs_forecast:
            return
        demand = _make_demand(num_tokens, num_prompts, sampling, client)
        try:
            self._check_time(limits, self.engine.forecast(demand))
        except DeadlineUnreachable:
            self.engine.note_refused(demand)
            raise

    def _make_table(
        self, tools: Sequence[Mapping[str, object]], text: TextParams
    ) -> ToolTable | None:
        """Return the tools whose calls are separated from the answer; None for none."""
        if self.renderer.tool_format is not None:
            return ToolTable(tools)
        if not text.parallel_tool_calls:
            raise NotSupported(
                "parallel_tool_calls",
                "the number of calls is only limited with --tool-call-parser",
            )
        return None

    @asynccontextmanager
    async def open_completion(
        self, prompt: str, **options: object
    ) -> AsyncIterator[TextStream]:
        """Continue a text.

        Args:
          prompt: the text; the tokenizer adds its special tokens before it.
          options: fields of SamplingParams and TextParams, `priority`, and `adapter`, the
            name of a loaded one; missing ones come from the model's generation_config.

        Raises:
          TypeError: an option is unknown.
          TrioserveError: see errors/.
        """
        sampling, text, others = self._split(options)
        with self.admit(1, len(prompt), sampling) as prompts:
            rendered = await self.renderer.render_text(prompt)
            prompts.append(rendered)
        async with self.open_text(
            [rendered],
            sampling,
            text,
            priority=others.priority,
            adapter=others.adapter,
        ) as stream:
            yield stream

    @asynccontextmanager
    async def open_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        continues: bool = False,
        **options: object,
    ) -> AsyncIterator[TextStream]:
        """Answer a conversation; `options` as in open_completion.

        Args:
          messages: {"role": ..., "content": ...} each, oldest first; content is a text
            or a list of OpenAI's parts, with images if the model takes images.
          tools: the tools that the model may call, in OpenAI's form.
          continues: the last message is the beginning of the answer.
        """
        sampling, text, others = self._split(options)
        with self.admit(1, count_characters(messages), sampling) as prompts:
            rendered = await self.renderer.render_chat(
                messages,
                ChatOptions(
                    tools=tools,
                    add_generation_prompt=not continues,
                    continue_final_message=continues,
                ),
            )
            prompts.append(rendered)
        async with self.open_text(
            [rendered],
            sampling,
            text,
            priority=others.priority,
            adapter=others.adapter,
            splits_reasoning=True,
            tools=tools,
        ) as stream:
            yield stream

    async def _check_arguments(self, sampling: SamplingParams) -> None:
        """Let plug-ins check their arguments, before the request is queued.

        Raises:
          InvalidParameter: a plug-in refuses them with a ValueError. Any other error is a
            defect of the plug-in and passes through.
          RuntimeError: they are not read in ARGUMENT_SECONDS.
          RendererStuck: too many calls of plug-ins or templates do not end.
        """
        # The engine refuses unknown names.
        named = [p for p in sampling.logits_processors if p[0] in self._processors]
        if not named:
            return
        try:
            await self.renderer.workers.run_limited(
                partial(self._read_arguments, named), ARGUMENT_SECONDS
            )
        except TookTooLong:
            names = ", ".join(name for name, _ in named)
            raise RuntimeError(
                f"{names}: read_arguments takes longer than {ARGUMENT_SECONDS:g} s"
            ) from None

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
    ) -> tuple[SamplingParams, TextParams, _Others]:
        options = dict(options)
        priority, adapter = options.pop("priority", 0), options.pop("adapter", None)
        if not isinstance(priority, int):
            raise TypeError("priority must be an int")
        if not isinstance(adapter, str | None):
            raise TypeError("adapter must be the name of an adapter")
        text = TextParams(
            **{  # type: ignore[arg-type]
                field.name: options.pop(field.name)
                for field in fields(TextParams)
                if field.name in options
            }
        )
        text.check_stop()
        for name in options.keys() - {field.name for field in fields(SamplingParams)}:
            raise TypeError(f"there is no option {name!r} of a request")
        return (
            replace(self._defaults, **options),  # type: ignore[arg-type]
            text,
            _Others(priority=priority, adapter=adapter),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Others:
    """Options of a request besides its sampling and its text."""

    priority: int
    adapter: str | None


def _make_demand(
    num_tokens: int, num_prompts: int, sampling: SamplingParams, client: Client
) -> Demand:
    shortest, longest = sampling.min_tokens, sampling.max_tokens
    # Only a stop string could end it earlier.
    if sampling.ignore_eos and longest is not None:
        shortest = longest
    return Demand(
        num_prompt_tokens=num_tokens,
        num_prompts=max(1, num_prompts),
        num_sequences=num_prompts * sampling.n,
        min_tokens=shortest,
        max_tokens=math.inf if longest is None else longest,
        client=client,
    )


def _make_absolute(path: str | Path) -> str:
    # It reads no disk.
    return abspath(expanduser(path))
