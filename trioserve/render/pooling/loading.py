"""Loads a pooling model's folder into a PoolingRenderer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers

from ...config import RenderConfig
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInfo, PoolingTask
from ...types.sentence import SentenceFolder
from ..text.loading import load_tokenizer, set_chat_template
from ..text.model_tokenizer import ModelTokenizer
from ..text.template import ChatTemplate
from ..workers.threads import RendererWorkers
from .late_interaction import LateInteraction
from .layout import Layout, find_layout
from .prompts import Prompts
from .recipes import RecipeBook
from .renderer import PoolingRenderer
from .rendering import PoolingTexts
from .tokenizer import PoolingTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParts:
    """The parts of a PoolingRenderer that do not depend on the loaded model.

    Args:
      late: None for a model without late interaction.
      single, pair: the special tokens around one text, or two.
    """

    tokenizer: ModelTokenizer
    sentence: SentenceFolder
    late: LateInteraction | None
    single: Layout
    pair: Layout


def load_pooling_parts(
    folder: Path,
    *,
    task: PoolingTask,
    sentence: SentenceFolder | None,
    chat_template: str | None,
) -> PoolingParts:
    """Load a pooling model's tokenizer. Blocks for a second or more.

    Args:
      folder: a model in Hugging Face layout; its weights may be missing. Nothing is
        read from elsewhere.
      sentence: the settings of sentence-transformers; None if the folder has none.
      chat_template: a Jinja template that replaces the model's own.

    Raises:
      WeightsBroken: the folder holds no tokenizer that can be read, or the words that
        late interaction needs are missing.
      UnsupportedModel: it is not a fast tokenizer, or does more around a text than to
        add special tokens.
      InvalidConfig: `chat_template` is not a template.
    """
    if sentence is not None:
        folder = folder / sentence.transformer_path
    tokenizer = load_tokenizer(folder)
    backend = tokenizer.backend
    # The tokenizer is changed only here, before threads share it.
    if sentence is not None:
        _register_words(backend, sentence.special_words)
        if sentence.lowercases:
            _bring_to_lower_case(backend)
    tokenizer = set_chat_template(tokenizer, chat_template)
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
    workers: RendererWorkers | None = None,
) -> PoolingRenderer:
    """Make the renderer of a loaded model from its parts.

    Args:
      workers: run the renderer's calls, in place of new threads.
    """
    template = ChatTemplate(
        parts.tokenizer, trusts_requests=config.trust_request_chat_template
    )
    texts = _make_texts(parts, info, pooling)
    return PoolingRenderer(texts, template, config, workers)


def _make_texts(
    parts: PoolingParts, info: ModelInfo, pooling: PoolingInfo
) -> PoolingTexts:
    own = PoolingTokenizer(parts.tokenizer.backend, vocab_size=info.vocab_size)
    recipes = RecipeBook(
        single=parts.single,
        pair=parts.pair,
        prompts=Prompts(parts.sentence, own.encode),
        pools_prompts=parts.sentence.pools_prompts,
        special_token_ids=parts.tokenizer.special_token_ids,
        late=parts.late,
        info=info,
        pooling=pooling,
    )
    return PoolingTexts(own, recipes, parts.late, tuple(parts.sentence.prompts))


def _register_words(backend: Tokenizer, words: tuple[str, ...]) -> None:
    """Make the tokenizer read each of these words of its vocabulary as one token.

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
    # If the normalizer does so already, a second time changes nothing.
    steps = [normalizers.Lowercase()]
    if backend.normalizer is not None:
        steps.append(backend.normalizer)
    backend.normalizer = normalizers.Sequence(steps)
