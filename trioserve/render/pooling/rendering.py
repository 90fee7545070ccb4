"""Turns texts into the inputs of a pooling model: whole, cut, or in chunks.

Blocking: runs in a renderer worker.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import InvalidParameter
from ...types.pooling import PoolingInput
from .late_interaction import LateInteraction
from .layout import LaidOut
from .pairs import render_pairs
from .recipes import MAX_CHUNKS, Recipe, RecipeBook
from .texts import Kind, Side, TextOptions
from .tokenizer import Demand, PoolingTokenizer, TakenTokens

# Returns the field of a text in the request, for errors, from the text's index.
NameParam = Callable[[int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """The text that a chat template made of a conversation."""

    text: str


ReadyText = str | tuple[int, ...] | RenderedChat


class PoolingTexts:
    """Makes inputs for one model.

    Args:
      late: None for a model with one vector for each text.
      prompt_names: see PoolingRenderer.
    """

    def __init__(
        self,
        tokenizer: PoolingTokenizer,
        recipes: RecipeBook,
        late: LateInteraction | None,
        prompt_names: tuple[str, ...],
    ) -> None:
        self.tokenizer = tokenizer
        self.prompt_names = prompt_names
        self._recipes = recipes
        self._late = late

    def render(
        self, texts: Sequence[ReadyText], options: TextOptions, name: NameParam
    ) -> list[tuple[PoolingInput, ...]]:
        """Make the inputs of texts.

        Raises:
          ContextLengthExceeded: a text is too long.
          InvalidParameter: a text is empty or not Unicode, or an option is wrong.
          NotSupported: the model cannot average chunks.
        """
        by_type = {each: self._choose(each, options) for each in set(map(type, texts))}
        recipes = [by_type[type(text)] for text in texts]
        taken = self._take(texts, recipes, name)
        return [
            self._make_inputs(taken[index], recipe, options.kind, name(index))
            for index, recipe in enumerate(recipes)
        ]

    def render_pairs(
        self, pairs: Sequence[tuple[str, str]], options: TextOptions, name: NameParam
    ) -> list[PoolingInput]:
        """Make the inputs of pairs.

        Raises:
          ContextLengthExceeded, InvalidParameter, NotSupported: as render.
        """
        recipe = self._recipes.for_pairs(options)
        return render_pairs(pairs, self.tokenizer, recipe, options, name)

    def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncate_to: int | None,
        side: Side,
        param: str,
    ) -> tuple[array[int], bool]:
        """Return a text's ids, without a prompt, and whether these are all ids.

        Raises:
          ContextLengthExceeded: it is longer than the model.
          InvalidParameter: it has no tokens, or is not Unicode text.
        """
        recipe = self._recipes.for_tokenize(add_special_tokens, truncate_to, side)
        taken = self.tokenizer.take([_demand(text, recipe, param)])[0]
        token_ids = recipe.fit(taken, param).token_ids
        return token_ids, taken.is_whole and len(taken.token_ids) <= recipe.room

    def _choose(self, text_type: type[object], options: TextOptions) -> Recipe:
        if text_type is str:
            return self._recipes.for_texts(options)
        if text_type is RenderedChat:
            return self._recipes.for_chats(options)
        return self._recipes.for_ids(options)

    def _take(
        self, texts: Sequence[ReadyText], recipes: Sequence[Recipe], name: NameParam
    ) -> dict[int, TakenTokens]:
        taken: dict[int, TakenTokens] = {}
        demands: dict[int, Demand] = {}
        for index, (text, recipe) in enumerate(zip(texts, recipes)):
            if isinstance(text, tuple):
                ids = self.tokenizer.read_ids(text, name(index))
                taken[index] = TakenTokens(token_ids=ids[: recipe.own_limit or None])
                continue
            plain = text.text if isinstance(text, RenderedChat) else text
            if recipe.own_limit:
                plain = self.tokenizer.shorten(plain, recipe.own_limit, name(index))
            demands[index] = _demand(plain, recipe, name(index))
        return taken | dict(zip(demands, self.tokenizer.take(list(demands.values()))))

    def _make_inputs(
        self, taken: TakenTokens, recipe: Recipe, kind: Kind | None, param: str
    ) -> tuple[PoolingInput, ...]:
        if recipe.over == "chunk" and len(taken.token_ids) > recipe.room:
            return _make_chunks(taken, recipe, param)
        laid_out = recipe.fit(taken, param)
        num_left_out = recipe.num_left_out - _count_cut_prompt(taken, recipe)
        left_out = tuple(range(min(num_left_out, len(laid_out.token_ids))))
        if self._late is None:
            return (PoolingInput(token_ids=laid_out.token_ids, left_out=left_out),)
        return (self._make_late(laid_out, recipe, kind, left_out),)

    def _make_late(
        self,
        laid_out: LaidOut,
        recipe: Recipe,
        kind: Kind | None,
        left_out: tuple[int, ...],
    ) -> PoolingInput:
        assert self._late is not None, "only such models fill queries up"
        token_ids = laid_out.token_ids
        skipped = self._late.find_skipped(token_ids, kind)
        num_unseen = self._late.fill_up(token_ids, kind) if recipe.fills_up else 0
        return PoolingInput(
            token_ids=token_ids,
            num_unseen=num_unseen,
            left_out=tuple(sorted({*left_out, *skipped})),
        )


def _demand(text: str, recipe: Recipe, param: str) -> Demand:
    return Demand(
        text=recipe.prompt.text + text,
        # One more token shows that the text is too long.
        num_tokens=recipe.max_tokens + 1,
        side=recipe.side,
        param=param,
    )


def _count_cut_prompt(taken: TakenTokens, recipe: Recipe) -> int:
    """Count the tokens of the prompt that were cut off with the start of the text."""
    num_prompt = len(recipe.prompt.token_ids)
    if recipe.num_left_out == 0 or recipe.side == "right":
        return 0
    if not taken.is_whole:
        return num_prompt
    return min(num_prompt, max(0, len(taken.token_ids) - recipe.room))


def _make_chunks(
    taken: TakenTokens, recipe: Recipe, param: str
) -> tuple[PoolingInput, ...]:
    """Divide a text's tokens into chunks, each with the prompt's tokens before it."""
    token_ids = taken.token_ids
    prompt = token_ids[: _count_shared(token_ids, recipe.prompt.token_ids)]
    room = recipe.room - len(prompt)
    if room < 1:
        raise InvalidParameter("prompt_name", "the prompt is as long as the model")
    begins = range(len(prompt), len(token_ids), room)
    if len(begins) > MAX_CHUNKS:
        raise recipe.too_long(len(token_ids), taken.is_whole, param)
    chunks = (
        recipe.layout.lay_out(prompt + token_ids[begin : begin + room])
        for begin in begins
    )
    return tuple(
        PoolingInput(
            token_ids=chunk.token_ids,
            left_out=_leave_prompt_out(chunk, len(prompt), recipe),
        )
        for chunk in chunks
    )


def _leave_prompt_out(
    chunk: LaidOut, num_prompt: int, recipe: Recipe
) -> tuple[int, ...]:
    if recipe.num_left_out == 0:
        return ()
    return tuple(range(chunk.text_begin + num_prompt))


def _count_shared(first: array[int], second: array[int]) -> int:
    """Count the first tokens that both have in common."""
    for index, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return index
    return min(len(first), len(second))
