"""A model's tokenizer, from its folder to a Renderer that is ready to work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from ...config import MediaConfig, RenderConfig
from ...errors import InvalidConfig, UnsupportedModel, WeightsBroken
from ...types.model_info import ModelInfo
from ..text.reasoning import ReasoningTags, load_reasoning_tags
from ..text.template import ChatTemplate
from ..text.tokenizer import TextTokenizer
from ..text.vocabulary import Vocabulary
from .renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..images.images import ImageRenderer

# More than the longest tag takes, a token for each of its 27 bytes.
_MAX_TAG_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """What a Renderer consists of and does not depend on the loaded model.

    Args:
      reasoning: the tags of the model's reasoning, where that is told apart.
      images: what prepares images, where the model takes some.
    """

    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    reasoning: ReasoningTags | None
    images: ImageRenderer | None


def load_renderer(
    folder: Path,
    config: RenderConfig,
    *,
    info: ModelInfo,
    media: MediaConfig = MediaConfig(),
    chat_template: str | None = None,
) -> Renderer:
    """Load a tokenizer and make a renderer of it, as load_text_parts and make_renderer.

    Args:
      info: the model's.
    """
    parts = load_text_parts(
        folder,
        config,
        media=media,
        takes_images=info.takes_images,
        chat_template=chat_template,
    )
    return make_renderer(parts, config, info=info)


def load_text_parts(
    folder: Path,
    config: RenderConfig,
    *,
    media: MediaConfig,
    takes_images: bool,
    chat_template: str | None,
) -> TextParts:
    """Load a tokenizer and check that it can serve. Blocks for a second or more.

    Args:
      folder: a model in Hugging Face layout, which may lack its weights; nothing is looked
        up elsewhere.
      chat_template: a Jinja template that replaces the model's own.

    Raises:
      WeightsBroken: the folder holds no tokenizer that can be read.
      UnsupportedModel: it is not a fast one, or its text is not its tokens in a row.
      InvalidConfig: `chat_template` is not a template, or the model has no tokens for
        the tags of its reasoning.
    """
    tokenizer = load_tokenizer(folder)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer)
    if not vocabulary.joins_as_decoded():
        raise UnsupportedModel(
            type(tokenizer).__name__, "its tokens do not add up to text one by one"
        )
    set_chat_template(tokenizer, folder, chat_template)
    return TextParts(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        reasoning=_load_reasoning(tokenizer, vocabulary, config.reasoning_parser),
        images=_load_images(folder, tokenizer, media) if takes_images else None,
    )


def make_renderer(
    parts: TextParts, config: RenderConfig, *, info: ModelInfo
) -> Renderer:
    """Put a renderer together for a model that is loaded."""
    images = parts.images
    return Renderer(
        TextTokenizer(
            parts.tokenizer.backend_tokenizer,
            parts.vocabulary,
            max_model_len=info.max_model_len,
        ),
        parts.vocabulary,
        ChatTemplate(
            parts.tokenizer,
            trusts_requests=config.trust_request_chat_template,
            image_token=None if images is None else images.token.text,
        ),
        config,
        info,
        images,
        parts.reasoning,
    )


def _load_reasoning(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, parser: str
) -> ReasoningTags | None:
    if parser == "none":
        return None
    texts = TextTokenizer(
        tokenizer.backend_tokenizer, vocabulary, max_model_len=_MAX_TAG_TOKENS
    )
    return load_reasoning_tags(parser, texts, vocabulary)


def _load_images(
    folder: Path, tokenizer: PreTrainedTokenizerBase, config: MediaConfig
) -> ImageRenderer:
    # Here because text models need neither Pillow nor an HTTP client.
    from ..images.images import ImageRenderer, load_image_processor

    processor = load_image_processor(folder, tokenizer, config)
    if processor is None:
        raise WeightsBroken(str(folder), "its image processor's files are missing")
    return ImageRenderer(processor, config)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer that neither truncates nor pads.

    Raises:
      WeightsBroken: the folder holds none that can be read.
      UnsupportedModel: it is not a fast one.
    """
    # Imported here because it takes seconds, and rooms that import render may never
    # load a tokenizer.
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # Broken files raise whatever their parser raises.
    except Exception as error:
        raise WeightsBroken(str(folder), f"its tokenizer: {error}") from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            type(tokenizer).__name__, "it has no fast tokenizer (tokenizer.json)"
        )
    # Set for good, before threads share the tokenizer. Some files ask for truncation,
    # which would cut prompts in silence.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def set_chat_template(
    tokenizer: PreTrainedTokenizerBase, folder: Path, replacement: str | None
) -> None:
    """Compile the template: its mistakes are told before the first request.

    Args:
      replacement: takes the place of the model's own.

    Raises:
      WeightsBroken: the model's own is not a template.
      InvalidConfig: the replacement is none.
    """
    if replacement is not None:
        tokenizer.chat_template = replacement
    if tokenizer.chat_template is None:
        return
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
        if replacement is not None:
            raise InvalidConfig("chat_template", reason) from error
        raise WeightsBroken(str(folder), f"its chat template: {reason}") from error
    # Any other complaint is about this message; a request will hear it as a 400.
    except Exception:
        return
