"""From the wishes of a request to sampling parameters, by the formats of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InvalidParameter, NotSupported
from ..render import ReasoningTags, Renderer, list_schemas
from ..types.prompt import Prompt
from ..types.sampling import ReasoningBudget, SamplingParams
from ..types.structured import Grammar, StructuredOutput
from .text_stream import TextParams


class ModelFormats:
    """Adds the parameters that depend on the model's reasoning, calls and messages."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def complete(
        self,
        sampling: SamplingParams,
        prompts: Sequence[Prompt],
        text: TextParams,
        tools: Sequence[Mapping[str, object]],
        *,
        is_chat: bool,
    ) -> SamplingParams:
        """Add the budget of the reasoning, and the grammar of the answer.

        Raises:
          InvalidParameter: there is a budget, but no reasoning that is found; or a grammar
            cannot express the form of the answer.
          NotSupported: calls are forced without a parser for calls, or the reasoning has
            no budget.
        """
        if text.thinking_token_budget is not None:
            if not is_chat:
                raise InvalidParameter("thinking_token_budget", "is for chats only")
            budget = self._make_budget(prompts, text.thinking_token_budget)
            sampling = replace(sampling, reasoning_budget=budget)
        structure = text.structured
        if text.forced_tools:
            structure = await self._describe_calls(tools, text, text.forced_tools)
        if structure is None:
            return sampling
        grammar = await self._renderer.structures.compile(structure)
        if is_chat and not text.forced_tools:
            grammar = await self._place(grammar, tools, text)
        tags = self._renderer.reasoning if is_chat else None
        return replace(
            sampling,
            grammar=_begin_behind(tags, prompts[0], grammar, structure.param),
        )

    def can_join(self, tools: Sequence[Mapping[str, object]], text: TextParams) -> bool:
        """Return whether an answer may have the form that the client wants, or calls.

        JSON alone: any other form may begin as a call begins.
        """
        return (
            bool(tools)
            and not text.forced_tools
            and text.structured is not None
            and text.structured.kind in ("json", "json_object")
            and self._renderer.tool_format is not None
            and self._renderer.tool_format.can_join
        )

    async def _describe_calls(
        self,
        tools: Sequence[Mapping[str, object]],
        text: TextParams,
        names: frozenset[str],
        *,
        is_free: bool = False,
    ) -> StructuredOutput:
        tool_format = self._renderer.tool_format
        if tool_format is None:
            raise NotSupported(
                "tool_choice", "calls are only forced with --tool-call-parser"
            )
        param = "tools" if is_free else "tool_choice"

        def write() -> StructuredOutput:
            grammar = tool_format.write_grammar(
                tools, names, takes_one=not text.parallel_tool_calls, is_free=is_free
            )
            parts = list_schemas(tools, names, is_free=is_free)
            return StructuredOutput(
                kind="grammar", value=grammar, param=param, parts=parts
            )

        return await self._renderer.structures.write(write, param, len(tools))

    async def _place(
        self, grammar: str, tools: Sequence[Mapping[str, Any]], text: TextParams
    ) -> str:
        """Return the grammar of an answer whose text has a grammar, or that calls tools."""
        if not self.can_join(tools, text):
            return await self._renderer.place_answer(grammar)
        names = frozenset(tool["function"]["name"] for tool in tools)
        form = await self._describe_calls(tools, text, names, is_free=True)
        calls = await self._renderer.structures.compile(form)
        return await self._renderer.place_answer(grammar, calls)

    def _make_budget(
        self, prompts: Sequence[Prompt], num_tokens: int
    ) -> ReasoningBudget | None:
        """Return the limit on the reasoning; None if it ends in the prompts already."""
        tags = self._renderer.reasoning
        if tags is None and self._renderer.separates_reasoning:
            raise NotSupported("thinking_token_budget", "send reasoning_effort")
        if tags is None:
            raise InvalidParameter("thinking_token_budget", "needs --reasoning-parser")
        places = {tags.find_place(prompt.text) for prompt in prompts}
        if len(places) != 1:
            raise ValueError("the prompts of one budget must end alike")
        place = places.pop()
        if place == "after":
            return None
        return ReasoningBudget(
            num_tokens=num_tokens,
            start_token_ids=tags.start_token_ids,
            end_token_ids=tags.end_token_ids,
            is_open=place == "opened",
        )


def _begin_behind(
    tags: ReasoningTags | None, prompt: Prompt, text: str, param: str
) -> Grammar:
    """Return a grammar that begins behind the reasoning, if the model still reasons."""
    place = "after" if tags is None else tags.find_place(prompt.text)
    if tags is None or place == "after":
        return Grammar(text=text, param=param)
    return Grammar(
        text=text,
        param=param,
        start_token_ids=tags.start_token_ids,
        end_token_ids=tags.end_token_ids,
        is_open=place == "opened",
    )
