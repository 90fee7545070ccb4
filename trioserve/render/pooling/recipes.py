"""Recipes: the treatment of a request's texts, decided before any text is read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from ...errors import ContextLengthExceeded, InvalidParameter, NotSupported
from ...types.model_info import ModelInfo
from ...types.pooling import LongText, PoolingInfo
from .late_interaction import LateInteraction
from .layout import BARE, BARE_PAIR, LaidOut, Layout
from .prompts import NO_PROMPT, PoolingPrompt, Prompts
from .texts import Side, TextOptions
from .tokenizer import TakenTokens, cut

# The most chunks of one text: half a million tokens for a model of 512. That is a
# library.
MAX_CHUNKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The treatment of all texts of one type.

    Args:
      layout: the special tokens around each text.
      limit: the most tokens of each text, special ones included.
      over: the treatment of texts with more tokens.
      side: the side on which tokens are left out.
      prompt: is put directly before each text.
      num_left_out: the number of first tokens that the model reads, but does not pool.
      own_limit: a text is cut to so many tokens before the prompt is added; 0 does not
        cut it.
      fills_up: the fillers of late interaction are put behind the text.
      type_ids: the two texts of a pair have different type ids.
    """

    layout: Layout
    limit: int
    over: LongText
    side: Side
    prompt: PoolingPrompt = NO_PROMPT
    num_left_out: int = 0
    own_limit: int = 0
    fills_up: bool = True
    type_ids: bool = False

    @property
    def room(self) -> int:
        """The most tokens of a text, without special ones."""
        return self.limit - self.layout.num_special

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text that is not refused."""
        return self.room * (MAX_CHUNKS if self.over == "chunk" else 1)

    def fit(self, taken: TakenTokens, param: str) -> LaidOut:
        """Cut a text's tokens if they may be cut, and add the special tokens.

        Raises:
          ContextLengthExceeded: there are too many, and they may not be cut.
          InvalidParameter: there are no tokens.
        """
        token_ids = taken.token_ids
        if len(token_ids) > self.room:
            if self.over != "truncate":
                raise self.too_long(len(token_ids), taken.is_whole, param)
            token_ids = cut(token_ids, self.room, self.side)
        return self.lay_out(param, token_ids)

    def lay_out(self, param: str, *texts: array[int]) -> LaidOut:
        """Add the special tokens.

        Raises:
          InvalidParameter: there are no tokens.
        """
        laid_out = self.layout.lay_out(*texts)
        if not laid_out.token_ids:
            raise InvalidParameter(param, "must not be empty")
        return laid_out

    def too_long(
        self, num_tokens: int, is_whole: bool, param: str
    ) -> ContextLengthExceeded:
        """Make the error for a text that is too long.

        Args:
          num_tokens: the known tokens, without special ones.
          is_whole: whether these are all tokens of the text.
        """
        num_special = self.layout.num_special
        return ContextLengthExceeded(
            num_tokens=num_tokens + num_special,
            limit=self.max_tokens + num_special,
            param=param,
            is_lower_bound=not is_whole,
        )


class RecipeBook:
    """Makes the recipes of one model.

    Args:
      single, pair: the special tokens around one text, or two.
      pools_prompts: whether the tokens of prompts are pooled, too.
      special_token_ids: all special tokens of the tokenizer.
      late: None for a model with one vector for each text.
    """

    def __init__(
        self,
        *,
        single: Layout,
        pair: Layout,
        prompts: Prompts,
        pools_prompts: bool,
        special_token_ids: frozenset[int],
        late: LateInteraction | None,
        info: ModelInfo,
        pooling: PoolingInfo,
    ) -> None:
        self._single = single
        self._pair = pair
        self._prompts = prompts
        self._pools_prompts = pools_prompts
        self._special_token_ids = special_token_ids
        self._late = late
        self._max_model_len = info.max_model_len
        self._averages = pooling.task == "embed"
        self._type_ids = pooling.type_ids

    def for_texts(self, options: TextOptions) -> Recipe:
        """Return the recipe of texts, with the prompt of their kind or of a name.

        Raises:
          InvalidParameter: the options leave no room for a text, or name no prompt.
          NotSupported: the model's results for chunks cannot be averaged.
        """
        layout = BARE if options.add_special_tokens is False else self._single
        prompt = self._prompts.choose(options.kind, options.prompt_name)
        return self._make(layout, options, prompt, _find_own_limit(options))

    def for_tokenize(
        self, add_special_tokens: bool, truncate_to: int | None, side: Side
    ) -> Recipe:
        """Return the recipe of texts whose ids a client asks for: without prompts.

        Raises:
          InvalidParameter: the options leave no room for a text.
        """
        limit, over = self._find_limit(TextOptions(truncate_to=truncate_to))
        layout = self._single if add_special_tokens else BARE
        return _check_room(Recipe(layout=layout, limit=limit, over=over, side=side))

    def for_pairs(self, options: TextOptions) -> Recipe:
        """Return the recipe of pairs; the query has the prompt. Raises as for_texts."""
        layout = BARE_PAIR if options.add_special_tokens is False else self._pair
        prompt = self._prompts.choose(None, options.prompt_name)
        recipe = self._make(layout, options, prompt)
        return replace(recipe, type_ids=self._type_ids)

    def for_chats(self, options: TextOptions) -> Recipe:
        """Return the recipe of conversations. Raises as for_texts."""
        _refuse_prompt(options)
        return self._make(self._single if options.add_special_tokens else BARE, options)

    def for_ids(self, options: TextOptions) -> Recipe:
        """Return the recipe of token ids. Raises as for_texts."""
        _refuse_prompt(options)
        recipe = self._make(BARE, options, own_limit=_find_own_limit(options))
        # Token ids stay unchanged.
        return replace(recipe, fills_up=False)

    def _make(
        self,
        layout: Layout,
        options: TextOptions,
        prompt: PoolingPrompt = NO_PROMPT,
        own_limit: int = 0,
    ) -> Recipe:
        limit, over = self._find_limit(options)
        limit, over = self._follow_model(limit, over, options)
        if over == "chunk" and not self._averages:
            raise NotSupported("long_text", "only embeddings of chunks are averaged")
        return _check_room(
            Recipe(
                layout=layout,
                limit=limit,
                over=over,
                # Chunks begin with the first token.
                side="right" if over == "chunk" else options.truncation_side,
                prompt=prompt,
                num_left_out=self._count_left_out(layout, prompt),
                own_limit=own_limit,
            )
        )

    def _find_limit(self, options: TextOptions) -> tuple[int, LongText]:
        limit = self._max_model_len
        if options.truncate_to is None:
            return limit, options.long_text
        if options.truncate_to > limit:
            raise InvalidParameter(
                "truncate_prompt_tokens", f"must not exceed the model's {limit} tokens"
            )
        return options.truncate_to, "truncate"

    def _follow_model(
        self, limit: int, over: LongText, options: TextOptions
    ) -> tuple[int, LongText]:
        own = self._late.find_limit(options.kind) if self._late else None
        if own is None or own >= self._max_model_len:
            return limit, over
        # Models for late interaction are trained on texts that are cut to this length.
        return min(limit, own), "truncate"

    def _count_left_out(self, layout: Layout, prompt: PoolingPrompt) -> int:
        """Count the tokens of the prompt alone, without a special token at its end.

        Source: _get_prompt_length of Transformer, sentence-transformers 6.2.
        """
        if self._pools_prompts or not prompt.text:
            return 0
        # In the layout of a pair the query comes first.
        single = BARE if layout.num_special == 0 else self._single
        alone: array[int] = single.lay_out(prompt.token_ids).token_ids
        ends_special = len(alone) > 0 and alone[-1] in self._special_token_ids
        return len(alone) - ends_special


def _check_room(recipe: Recipe) -> Recipe:
    if recipe.room < 0:
        raise InvalidParameter(
            "truncate_prompt_tokens",
            f"must leave room for {recipe.layout.num_special} special tokens",
        )
    return recipe


def _find_own_limit(options: TextOptions) -> int:
    if options.kind == "query":
        return options.max_query_tokens
    return options.max_document_tokens if options.kind == "document" else 0


def _refuse_prompt(options: TextOptions) -> None:
    if options.prompt_name is not None:
        raise InvalidParameter(
            "prompt_name", "prompts are put before texts, not before ids or chats"
        )
