"""Turns text and chat messages into engine inputs, and token ids back into text.

Work that grows with its input runs in threads under limiters, above all the *renderer
workers*; a Detokenizer is cheap enough for the event loop. The room knows the
tokenizer, its chat template, and how images and tensors come in; it does not know HTTP
or the engine.

The doors are load_renderer, which gives a Renderer, and load_pooling_renderer for models
that pool, whose results `vectors` writes. Each is two steps, load_text_parts and
make_renderer for one: the first needs no loaded model.
"""

from .chat import TURN_CHARACTERS, ChatMessage, count_characters
from .detokenizer import Detokenizer, TextDelta
from .loading import TextParts, load_renderer, load_text_parts, make_renderer
from .pooling import (
    ChatInput,
    PoolingParts,
    PoolingRenderer,
    TextInput,
    TextOptions,
    count_text,
    load_pooling_parts,
    load_pooling_renderer,
    make_pooling_renderer,
)
from .processes import open_template_processes
from .renderer import Renderer
from .stop import check_stop_strings
from .template import ChatOptions
from .together import run_together
from .tokens import TokenizeOptions
from .workers import RendererStatistics, RendererWorkers

__all__ = [
    "TURN_CHARACTERS",
    "ChatInput",
    "ChatMessage",
    "ChatOptions",
    "Detokenizer",
    "PoolingParts",
    "PoolingRenderer",
    "Renderer",
    "RendererStatistics",
    "RendererWorkers",
    "TextDelta",
    "TextInput",
    "TextOptions",
    "TextParts",
    "TokenizeOptions",
    "check_stop_strings",
    "count_characters",
    "count_text",
    "load_pooling_parts",
    "load_pooling_renderer",
    "load_renderer",
    "load_text_parts",
    "make_pooling_renderer",
    "make_renderer",
    "open_template_processes",
    "run_together",
]
