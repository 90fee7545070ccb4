"""Text in, text out; texts in, vectors and scores out.

The rooms render and engine do not know each other. This room joins them, for the HTTP room
and for programs that embed the engine. It does not know HTTP or tensor libraries. The
doors are TextEngine and PoolingEngine.
"""

from .pooling import Classification, Pooled, PoolingEngine
from .scoring import ScoreOptions, Scores
from .served import StreamLimits
from .text import TextEngine
from .text_stream import (
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_THINKING_TOKEN_BUDGET,
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
    "StreamLimits",
    "TextEngine",
    "TextParams",
    "TextStream",
]
