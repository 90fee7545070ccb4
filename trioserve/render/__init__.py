"""Turns text and chat messages into engine inputs, and token ids back into text.

Work that grows with its input runs in threads under one limiter, the *renderer
workers*; a Detokenizer is cheap enough for the event loop. The room knows the
tokenizer and its chat template; it does not know HTTP, the engine, or tensors.

The door is load_renderer, which gives a Renderer.
"""

from .chat import ChatMessage
from .detokenizer import Detokenizer, TextDelta
from .loading import load_renderer
from .renderer import Renderer
from .workers import RendererStatistics

__all__ = [
    "ChatMessage",
    "Detokenizer",
    "Renderer",
    "RendererStatistics",
    "TextDelta",
    "load_renderer",
]
