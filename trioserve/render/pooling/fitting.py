"""Fits tokens into the model's length: all of them, a part, or an error."""

from __future__ import annotations

from ...errors import ContextLengthExceeded, InvalidParameter
from .layout import LaidOut
from .recipes import Recipe
from .tokenizer import TakenTokens, cut


def fit(taken: TakenTokens, recipe: Recipe, param: str) -> LaidOut:
    """Cut a text's tokens if the recipe allows it, and add the special tokens.

    Raises:
      ContextLengthExceeded: there are too many, and the recipe does not cut them.
      InvalidParameter: there are no tokens.
    """
    token_ids = taken.token_ids
    if len(token_ids) > recipe.room:
        if recipe.over != "truncate":
            raise too_long(recipe, len(token_ids), taken.is_whole, param)
        token_ids = cut(token_ids, recipe.room, recipe.side)
    laid_out = recipe.layout.lay_out(token_ids)
    check_not_empty(laid_out, param)
    return laid_out


def check_not_empty(laid_out: LaidOut, param: str) -> None:
    if not laid_out.token_ids:
        raise InvalidParameter(param, "must not be empty")


def too_long(
    recipe: Recipe, num_tokens: int, is_whole: bool, param: str
) -> ContextLengthExceeded:
    """Make the error for a text that is too long.

    Args:
      num_tokens: the known tokens, without special ones.
      is_whole: whether these are all tokens of the text.
    """
    num_special = recipe.layout.num_special
    return ContextLengthExceeded(
        num_tokens=num_tokens + num_special,
        limit=recipe.max_tokens + num_special,
        param=param,
        is_lower_bound=not is_whole,
    )
