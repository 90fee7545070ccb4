"""From the wishes of a request to sampling parameters, by the formats of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import InvalidParameter, NotSupported
from ..render import ReasoningTags, Renderer, list_schemas
from ..types.prompt import Prompt
from ..types.sampling import ReasoningBudget, SamplingParams
from ..types.structured import Grammar, StructuredOutput
from .text_params import TextParams


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
          NotSupported: calls are forced that cannot be forced, or the reasoning has no
            budget.
        """
        if text.thinking_token_budget is not None:
            if not is_chat:
                raise InvalidParameter("thinking_token_budget", "is for chats only")
            budget = self._make_budget(prompts, text.thinking_token_budget)
            sampling = replace(sampling, reasoning_budget=budget)
        tags = self._renderer.reasoning if is_chat else None
        if (forced := self._force_calls(tools, text)) is not None:
            grammar = await self._compile(forced, prompts, tags)
            return replace(sampling, grammar=grammar)
        if text.structured is None:
            return sampling
        grammar = await self._compile(text.structured, prompts, tags)
        if is_chat:
            placed = await self._renderer.place_answer(grammar.text)
            grammar = replace(grammar, text=placed)
        return replace(sampling, grammar=grammar)

    def _force_calls(
        self, tools: Sequence[Mapping[str, object]], text: TextParams
    ) -> StructuredOutput | None:
        """Return the form of an answer that must call tools; None if it need not."""
        if not text.forced_tools:
            return None
        if self._renderer.tool_format is None:
            raise NotSupported(
                "tool_choice", "calls are only forced with --tool-call-parser"
            )
        grammar = self._renderer.tool_format.write_grammar(
            tools, text.forced_tools, takes_one=not text.parallel_tool_calls
        )
        return StructuredOutput(
            kind="grammar",
            value=grammar,
            param="tool_choice",
            parts=list_schemas(tools, text.forced_tools),
        )

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

    async def _compile(
        self,
        structure: StructuredOutput,
        prompts: Sequence[Prompt],
        tags: ReasoningTags | None,
    ) -> Grammar:
        """Return the grammar of a form; it begins behind the reasoning."""
        text = await self._renderer.structures.compile(structure)
        place = "after" if tags is None else tags.find_place(prompts[0].text)
        if tags is None or place == "after":
            return Grammar(text=text, param=structure.param)
        return Grammar(
            text=text,
            param=structure.param,
            start_token_ids=tags.start_token_ids,
            end_token_ids=tags.end_token_ids,
            is_open=place == "opened",
        )
