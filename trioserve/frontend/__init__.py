"""Text in, text out; texts in, vectors and scores out.

Render and engine do not know each other. This room composes them once, for the HTTP room
and for programs that embed the engine. It knows no HTTP and no tensor. The doors are
TextEngine and PoolingEngine.
"""

from .pooling import Classification, Pooled, PoolingEngine
from .scoring import ScoreOptions, Scores
from .text import (
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_THINKING_TOKEN_BUDGET,
    TextEngine,
    TextParams,
    TextStream,
)

__all__ = [
    "MAX_STOP_STRINGS",
    "MAX_STOP_STRING_CHARACTERS",
    "MAX_THINKING_TOKEN_BUDGET",
    "Classification",
    "Pooled",
    "PoolingEngine",
    "ScoreOptions",
    "Scores",
    "TextEngine",
    "TextParams",
    "TextStream",
]
