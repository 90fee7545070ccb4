"""Turns text and chat messages into engine inputs, and token ids back into text.

Work that grows with its input runs in threads under limiters, above all the *renderer
workers*; a Detokenizer is cheap enough for the event loop. The room knows the
tokenizer, its chat template, and how images and tensors come in; it does not know HTTP
or the engine.

The door is load_renderer, which gives a Renderer.
"""

from .chat import ChatMessage
from .detokenizer import Detokenizer, TextDelta
from .loading import load_renderer
from .processes import open_template_processes
from .renderer import Renderer
from .template import ChatOptions
from .together import run_together
from .tokens import TokenizeOptions
from .workers import RendererStatistics, RendererWorkers

__all__ = [
    "ChatMessage",
    "ChatOptions",
    "Detokenizer",
    "Renderer",
    "RendererStatistics",
    "RendererWorkers",
    "TextDelta",
    "TokenizeOptions",
    "load_renderer",
    "open_template_processes",
    "run_together",
]
