"""A pooling model's tokenizer, from its folder to a PoolingRenderer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, normalizers

from ...config import RenderConfig
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInfo, PoolingTask
from ...types.sentence import SentenceFolder
from ..text.loading import load_tokenizer, set_chat_template
from ..text.template import ChatTemplate
from .late_interaction import LateInteraction
from .layout import Layout, find_layout
from .prompts import Prompts
from .recipes import RecipeBook
from .renderer import PoolingRenderer
from .rendering import PoolingTexts
from .tokenizer import PoolingTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParts:
    """What a PoolingRenderer consists of and does not depend on the loaded model.

    Args:
      late: what late interaction does to texts; None where it is not what is done.
      single, pair: how a text, and two, stand among special tokens.
    """

    tokenizer: PreTrainedTokenizerBase
    sentence: SentenceFolder
    late: LateInteraction | None
    single: Layout
    pair: Layout


def load_pooling_renderer(
    folder: Path,
    config: RenderConfig,
    *,
    info: ModelInfo,
    pooling: PoolingInfo,
    sentence: SentenceFolder | None,
    chat_template: str | None = None,
) -> PoolingRenderer:
    """Load a pooling model's tokenizer and make a renderer of it.

    As load_pooling_parts and make_pooling_renderer.

    Args:
      info, pooling: the model's.
    """
    parts = load_pooling_parts(
        folder, task=pooling.task, sentence=sentence, chat_template=chat_template
    )
    return make_pooling_renderer(parts, config, info=info, pooling=pooling)


def load_pooling_parts(
    folder: Path,
    *,
    task: PoolingTask,
    sentence: SentenceFolder | None,
    chat_template: str | None,
) -> PoolingParts:
    """Load a pooling model's tokenizer. Blocks for a second or more.

    Args:
      folder: a model in Hugging Face layout, which may lack its weights; nothing is looked
        up elsewhere.
      sentence: what sentence-transformers wrote about it, if that made it.
      chat_template: a Jinja template that replaces the model's own.

    Raises:
      WeightsBroken: the folder holds no tokenizer that can be read, or not the words
        that late interaction needs.
      UnsupportedModel: it is not a fast one, or does what no other does.
      InvalidConfig: `chat_template` is not a template.
    """
    if sentence is not None:
        folder = folder / sentence.transformer_path
    tokenizer = load_tokenizer(folder)
    backend = tokenizer.backend_tokenizer
    # Last changes, before threads share the tokenizer.
    if sentence is not None:
        _register_words(backend, sentence.special_words)
        if sentence.lowercases:
            _bring_to_lower_case(backend)
    set_chat_template(tokenizer, folder, chat_template)
    known = sentence or SentenceFolder()
    return PoolingParts(
        tokenizer=tokenizer,
        sentence=known,
        late=LateInteraction(known, tokenizer) if task == "token_embed" else None,
        single=find_layout(backend, num_texts=1),
        pair=find_layout(backend, num_texts=2),
    )


def make_pooling_renderer(
    parts: PoolingParts,
    config: RenderConfig,
    *,
    info: ModelInfo,
    pooling: PoolingInfo,
) -> PoolingRenderer:
    """Put a renderer together for a model that is loaded."""
    template = ChatTemplate(
        parts.tokenizer, trusts_requests=config.trust_request_chat_template
    )
    return PoolingRenderer(_make_texts(parts, info, pooling), template, config)


def _make_texts(
    parts: PoolingParts, info: ModelInfo, pooling: PoolingInfo
) -> PoolingTexts:
    own = PoolingTokenizer(
        parts.tokenizer.backend_tokenizer, vocab_size=info.vocab_size
    )
    recipes = RecipeBook(
        single=parts.single,
        pair=parts.pair,
        prompts=Prompts(parts.sentence, own.encode),
        pools_prompts=parts.sentence.pools_prompts,
        special_token_ids=frozenset(parts.tokenizer.all_special_ids),
        late=parts.late,
        info=info,
        pooling=pooling,
    )
    return PoolingTexts(own, recipes, parts.late, tuple(parts.sentence.prompts))


def _register_words(backend: Tokenizer, words: tuple[str, ...]) -> None:
    """Have words of the vocabulary read as one token each.

    Source: _register_prefix_tokens of MultiVectorEncoder, sentence-transformers 6.2.
    """
    known = backend.get_vocab(with_added_tokens=True)
    for word in words:
        tokens = backend.encode(word, add_special_tokens=False).tokens
        if word in known and tokens != [word]:
            backend.add_special_tokens(
                [AddedToken(word, normalized=False, special=True)]
            )


def _bring_to_lower_case(backend: Tokenizer) -> None:
    # Twice does no harm: nobody needs to know whether it does so already.
    steps = [normalizers.Lowercase()]
    if backend.normalizer is not None:
        steps.append(backend.normalizer)
    backend.normalizer = normalizers.Sequence(steps)
