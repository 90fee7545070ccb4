"""A pooling model's tokenizer, from its folder to a PoolingRenderer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, normalizers

from ...config import RenderConfig
from ...pooling import PoolingInfo
from ...sentence import SentenceFolder
from ...steps import ModelInfo
from ..loading import load_tokenizer, set_chat_template
from ..template import ChatTemplate
from .late_interaction import LateInteraction
from .layout import find_layout
from .prompts import Prompts
from .recipes import RecipeBook
from .renderer import PoolingRenderer
from .rendering import PoolingTexts
from .tokens import PoolingTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_pooling_renderer(
    folder: Path,
    config: RenderConfig,
    *,
    info: ModelInfo,
    pooling: PoolingInfo,
    sentence: SentenceFolder | None,
    chat_template: str | None = None,
) -> PoolingRenderer:
    """Load a pooling model's tokenizer. Blocks for a second or more.

    Args:
      folder: a model in Hugging Face layout; nothing is looked up elsewhere.
      info, pooling: the model's.
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
    # Last changes, before threads share the tokenizer.
    if sentence is not None:
        _register_words(tokenizer.backend_tokenizer, sentence.special_words)
        if sentence.lowercases:
            _bring_to_lower_case(tokenizer.backend_tokenizer)
    set_chat_template(tokenizer, folder, chat_template)
    texts = _make_texts(tokenizer, info, pooling, sentence or SentenceFolder())
    template = ChatTemplate(
        tokenizer, trusts_requests=config.trust_request_chat_template
    )
    return PoolingRenderer(texts, template, config)


def _make_texts(
    tokenizer: PreTrainedTokenizerBase,
    info: ModelInfo,
    pooling: PoolingInfo,
    sentence: SentenceFolder,
) -> PoolingTexts:
    backend = tokenizer.backend_tokenizer
    own = PoolingTokenizer(backend, vocab_size=info.vocab_size)
    late = None
    if pooling.task == "token_embed":
        late = LateInteraction(sentence, tokenizer)
    recipes = RecipeBook(
        single=find_layout(backend, num_texts=1),
        pair=find_layout(backend, num_texts=2),
        prompts=Prompts(sentence, own.encode),
        pools_prompts=sentence.pools_prompts,
        special_token_ids=frozenset(tokenizer.all_special_ids),
        late=late,
        info=info,
        pooling=pooling,
    )
    return PoolingTexts(own, recipes, late, tuple(sentence.prompts))


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
