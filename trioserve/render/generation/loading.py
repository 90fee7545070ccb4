"""Loads a model's folder into a Renderer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...config import MediaConfig, RenderConfig
from ...errors import InvalidConfig, UnsupportedModel, WeightsBroken
from ...types.model_info import SEES_NO_IMAGES, ModelInfo
from ..text.loading import (
    describe_tokenizer,
    load_tokenizer,
    load_with_transformers,
    set_chat_template,
)
from ..text.model_tokenizer import ModelTokenizer
from ..text.reasoning import ReasoningTags, load_reasoning_tags
from ..text.template import ChatTemplate
from ..text.tokenizer import TextTokenizer
from ..text.vocabulary import Vocabulary
from ..tools.families import ToolFormat, load_tool_format
from ..workers.threads import RendererWorkers
from .renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..images.renderer import ImageRenderer

# More than the longest tag needs: it has 27 bytes, so at most 27 tokens.
_MAX_TAG_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """The parts of a Renderer that do not depend on the loaded model.

    Args:
      reasoning: the tags of the model's reasoning; None if it is not separated.
      tool_format: the form of the model's tool calls; None if they stay text.
      images: prepares images; None for a model that takes none.
      image_refusal: the reason why it takes none, for clients.
    """

    tokenizer: ModelTokenizer
    vocabulary: Vocabulary
    reasoning: ReasoningTags | None
    tool_format: ToolFormat | None
    images: ImageRenderer | None
    image_refusal: str


def load_text_parts(
    folder: Path,
    config: RenderConfig,
    *,
    media: MediaConfig,
    image_refusal: str | None,
    chat_template: str | None,
) -> TextParts:
    """Load a tokenizer and check that it can serve. Blocks for a second or more.

    Args:
      folder: a model in Hugging Face layout; its weights may be missing. Nothing is
        read from elsewhere.
      image_refusal: the reason why the model takes no images; None if it takes them.
      chat_template: a Jinja template that replaces the model's own.

    Raises:
      WeightsBroken: the folder holds no tokenizer that can be read.
      UnsupportedModel: it is not a fast tokenizer, or a text is not the concatenation
        of its tokens.
      InvalidConfig: `chat_template` is not a template, or the model has no tokens for
        the tags of its reasoning.
    """
    if image_refusal is not None:
        tokenizer = load_tokenizer(folder)
        parts = _load_parts(tokenizer, config, chat_template)
        return replace(parts, image_refusal=image_refusal)
    # Image processors take transformers' object.
    loaded = load_with_transformers(folder)
    tokenizer = describe_tokenizer(loaded, folder)
    parts = _load_parts(tokenizer, config, chat_template)
    return replace(parts, images=_load_images(folder, loaded, media))


def _load_parts(
    tokenizer: ModelTokenizer, config: RenderConfig, chat_template: str | None
) -> TextParts:
    vocabulary = Vocabulary(tokenizer.backend)
    if not vocabulary.joins_as_decoded():
        raise UnsupportedModel(
            tokenizer.class_name, "its tokens do not add up to text one by one"
        )
    tokenizer = set_chat_template(tokenizer, chat_template)
    reasoning = _load_reasoning(tokenizer, vocabulary, config.reasoning_parser)
    tool_format = load_tool_format(config.tool_call_parser, tokenizer, vocabulary)
    if reasoning is not None and tool_format is not None:
        if tool_format.splits_reasoning:
            raise InvalidConfig(
                "reasoning_parser", f"{tool_format.family} finds the reasoning itself"
            )
    return TextParts(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        reasoning=reasoning,
        tool_format=tool_format,
        images=None,
        image_refusal=SEES_NO_IMAGES,
    )


def make_renderer(
    parts: TextParts,
    config: RenderConfig,
    *,
    info: ModelInfo,
    workers: RendererWorkers | None = None,
) -> Renderer:
    """Make the renderer of a loaded model from its parts.

    Args:
      workers: run the renderer's calls, in place of new threads.
    """
    images = parts.images
    return Renderer(
        TextTokenizer(
            parts.tokenizer.backend, parts.vocabulary, max_model_len=info.max_model_len
        ),
        parts.vocabulary,
        ChatTemplate(
            parts.tokenizer,
            trusts_requests=config.trust_request_chat_template,
            image_token=None if images is None else images.token.text,
            image_refusal=parts.image_refusal,
            describes_tools=parts.tool_format is not None
            and parts.tool_format.describes_tools,
        ),
        config,
        info,
        images,
        parts.reasoning,
        parts.tool_format,
        workers,
    )


def _load_reasoning(
    tokenizer: ModelTokenizer, vocabulary: Vocabulary, parser: str
) -> ReasoningTags | None:
    if parser == "none":
        return None
    texts = TextTokenizer(tokenizer.backend, vocabulary, max_model_len=_MAX_TAG_TOKENS)
    return load_reasoning_tags(parser, texts, vocabulary)


def _load_images(
    folder: Path, tokenizer: PreTrainedTokenizerBase, config: MediaConfig
) -> ImageRenderer:
    # Imported here, because text models need neither Pillow nor an HTTP client.
    from ..images.renderer import ImageRenderer, load_image_processor

    processor = load_image_processor(folder, tokenizer, config)
    if processor is None:
        raise WeightsBroken(str(folder), "its image processor's files are missing")
    return ImageRenderer(processor, config)
