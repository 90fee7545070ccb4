"""Loads a model's folder into a renderer, in one step.

The server does it in two: load_text_parts needs no loaded model, and make_renderer does.
"""

from __future__ import annotations

from pathlib import Path

from ..config import MediaConfig, RenderConfig
from ..render import (
    PoolingRenderer,
    Renderer,
    load_pooling_parts,
    load_text_parts,
    make_pooling_renderer,
    make_renderer,
)
from ..types.model_info import SEES_NO_IMAGES, ModelInfo
from ..types.pooling import PoolingInfo
from ..types.sentence import SentenceFolder


def load_renderer(
    folder: Path,
    config: RenderConfig,
    *,
    info: ModelInfo,
    media: MediaConfig = MediaConfig(),
    chat_template: str | None = None,
) -> Renderer:
    """Load a tokenizer and make a renderer."""
    parts = load_text_parts(
        folder,
        config,
        media=media,
        image_refusal=None if info.takes_images else SEES_NO_IMAGES,
        chat_template=chat_template,
    )
    return make_renderer(parts, config, info=info)


def load_pooling_renderer(
    folder: Path,
    config: RenderConfig,
    *,
    info: ModelInfo,
    pooling: PoolingInfo,
    sentence: SentenceFolder | None,
    chat_template: str | None = None,
) -> PoolingRenderer:
    """Load a tokenizer and make a renderer of a model that pools."""
    parts = load_pooling_parts(
        folder, task=pooling.task, sentence=sentence, chat_template=chat_template
    )
    return make_pooling_renderer(parts, config, info=info, pooling=pooling)
