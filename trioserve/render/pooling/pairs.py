"""Turns pairs of a query and a document into inputs of a cross-encoder.

Blocking: runs in a renderer worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...types.pooling import PoolingInput
from .recipes import Recipe
from .texts import TextOptions
from .tokenizer import Demand, PoolingTokenizer, TakenTokens, cut


def render_pairs(
    pairs: Sequence[tuple[str, str]],
    tokenizer: PoolingTokenizer,
    recipe: Recipe,
    options: TextOptions,
    name: Callable[[int], str],
) -> list[PoolingInput]:
    """Make the inputs of pairs; a text that occurs in several is tokenized once.

    Raises:
      ContextLengthExceeded: a pair is too long.
      InvalidParameter: a pair is empty or not Unicode.
    """
    queries = _Part(tokenizer, recipe, recipe.prompt.text, options.max_query_tokens)
    documents = _Part(tokenizer, recipe, "", options.max_document_tokens)
    for index, (query, document) in enumerate(pairs):
        queries.want(query, name(index))
        documents.want(document, name(index))
    taken = zip(
        queries.take([query for query, _ in pairs]),
        documents.take([document for _, document in pairs]),
    )
    return [
        _make_pair(query, document, recipe, name(index))
        for index, (query, document) in enumerate(taken)
    ]


class _Part:
    """The queries of all pairs, or their documents; equal texts are kept once."""

    def __init__(
        self, tokenizer: PoolingTokenizer, recipe: Recipe, prompt: str, own_limit: int
    ) -> None:
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._prompt = prompt
        self._own_limit = own_limit
        self._demands: dict[str, Demand] = {}

    def want(self, text: str, param: str) -> None:
        if text in self._demands:
            return
        kept = text
        if self._own_limit:
            kept = self._tokenizer.shorten(text, self._own_limit, param)
        self._demands[text] = Demand(
            text=self._prompt + kept,
            # One more token shows that the text is too long.
            num_tokens=self._recipe.room + 1,
            side=self._recipe.side,
            param=param,
        )

    def take(self, texts: Sequence[str]) -> list[TakenTokens]:
        demands = list(self._demands.values())
        taken = dict(zip(self._demands, self._tokenizer.take(demands)))
        return [taken[text] for text in texts]


def _make_pair(
    query: TakenTokens, document: TakenTokens, recipe: Recipe, param: str
) -> PoolingInput:
    first, second = query.token_ids, document.token_ids
    if len(first) + len(second) > recipe.room:
        if recipe.over != "truncate":
            is_whole = query.is_whole and document.is_whole
            raise recipe.too_long(len(first) + len(second), is_whole, param)
        # If neither text was read to its end, it is not known which one is longer. Then
        # an odd token may go to another text than in transformers.
        kept = shorten_longest(len(first), len(second), recipe.room)
        first = cut(first, kept[0], recipe.side)
        second = cut(second, kept[1], recipe.side)
    laid_out = recipe.lay_out(param, first, second)
    return PoolingInput(
        token_ids=laid_out.token_ids,
        second_begin=laid_out.second_begin if recipe.type_ids else 0,
        left_out=tuple(range(min(recipe.num_left_out, len(laid_out.token_ids)))),
    )


def shorten_longest(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the numbers of tokens that two texts keep to fit into the room together.

    The longer text loses tokens until both are equally long; then both lose tokens.

    Source: truncate_encodings (LongestFirst) of tokenizers 0.23, which gives the odd
    token to the one that was longer.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    kept_longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + kept_longer > room:
        shorter, kept_longer = room // 2, room - room // 2
    return (kept_longer, shorter) if first > second else (shorter, kept_longer)
