"""How the texts of one request are brought to the model, worked out before any is read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from ...errors import InvalidParameter, NotSupported
from ...types.model_info import ModelInfo
from ...types.pooling import LongText, PoolingInfo
from .late_interaction import LateInteraction
from .layout import BARE, BARE_PAIR, Layout
from .prompts import NO_PROMPT, PoolingPrompt, Prompts
from .texts import Side, TextOptions

# Of one text: half a million tokens for a model of 512. More is no text but a library.
MAX_CHUNKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done with all texts of one sort.

    Args:
      layout: what is put around each.
      limit: tokens that each may have, special ones included.
      over: what is done with those that have more.
      side: where tokens are left out.
      prompt: what is put directly before each.
      num_left_out: tokens, from the first one, that are read and not pooled.
      own_limit: tokens that a text is cut to before the prompt is put before it; 0 cuts
        none.
      fills_up: late interaction's fillers are put after it.
      type_ids: the model tells the two texts of a pair apart.
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
        """For tokens that are not special."""
        return self.limit - self.layout.num_special

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that are not refused."""
        return self.room * (MAX_CHUNKS if self.over == "chunk" else 1)


class RecipeBook:
    """Makes the recipes of one model.

    Args:
      single, pair: what the tokenizer puts around one text, or two.
      pools_prompts: prompts are a part of what is pooled.
      special_token_ids: all that the tokenizer has.
      late: None for a model that has one vector for a text.
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
        """How texts are read, with the prompt of their kind or of the name.

        Raises:
          InvalidParameter: the options leave no room for a text, or name no prompt.
          NotSupported: results of chunks cannot be averaged.
        """
        layout = BARE if options.add_special_tokens is False else self._single
        prompt = self._prompts.choose(options.kind, options.prompt_name)
        return self._make(layout, options, prompt, _find_own_limit(options))

    def for_tokenize(
        self, add_special_tokens: bool, truncate_to: int | None, side: Side
    ) -> Recipe:
        """For texts whose ids are told to a client: nothing of the model's own is done.

        Raises:
          InvalidParameter: the options leave no room for a text.
        """
        limit, over = self._find_limit(TextOptions(truncate_to=truncate_to))
        layout = self._single if add_special_tokens else BARE
        return _check_room(Recipe(layout=layout, limit=limit, over=over, side=side))

    def for_pairs(self, options: TextOptions) -> Recipe:
        """How pairs are read; the prompt is the query's. Raises as for_texts."""
        layout = BARE_PAIR if options.add_special_tokens is False else self._pair
        prompt = self._prompts.choose(None, options.prompt_name)
        recipe = self._make(layout, options, prompt)
        return replace(recipe, type_ids=self._type_ids)

    def for_chats(self, options: TextOptions) -> Recipe:
        """How conversations are read. Raises as for_texts."""
        _refuse_prompt(options)
        return self._make(self._single if options.add_special_tokens else BARE, options)

    def for_ids(self, options: TextOptions) -> Recipe:
        """How token ids are read. Raises as for_texts."""
        _refuse_prompt(options)
        recipe = self._make(BARE, options, own_limit=_find_own_limit(options))
        # They are taken as they are.
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
        # Late interaction is trained on texts that are cut to this.
        return min(limit, own), "truncate"

    def _count_left_out(self, layout: Layout, prompt: PoolingPrompt) -> int:
        """Tokens of the prompt alone, without a special one at its end.

        Source: _get_prompt_length of Transformer, sentence-transformers 6.2.
        """
        if self._pools_prompts or not prompt.text:
            return 0
        # Of a pair's layout the query is the first part.
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
