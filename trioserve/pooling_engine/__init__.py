"""Text in, vectors and scores out: the pooling renderer and loop put together.

As text_engine for models that write: render and engine do not know each other, and this
room composes them, once, for the HTTP room and for programs that embed the engine. It
knows no HTTP and no tensor. The door is PoolingEngine.
"""

from .engine import Classification, Pooled, PoolingEngine
from .scoring import ScoreOptions, Scores

__all__ = ["Classification", "Pooled", "PoolingEngine", "ScoreOptions", "Scores"]
