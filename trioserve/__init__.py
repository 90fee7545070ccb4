"""trioserve: an LLM inference server whose every request is one cancel scope.

    trioserve serve                                        the command line
    hypercorn -w 0 -k trio 'trioserve.asgi:create_app()'   behind hypercorn
    async with trioserve.open_engine() as engine: ...      in any trio program
    async with trioserve.open_pooling_engine("...") as engine: ...      the same

General layout: `steps`, `errors` and `config` are the vocabulary that every room shares;
`scheduler`, `model`, `render` and `weights` know nothing of each other; `executor` runs
`model`, `engine` runs `scheduler` and `executor`, `text_engine` and `pooling_engine` join
`engine` and `render`, `launch` builds all of it, and `http` serves it.
"""

__version__ = "0.1.0"

from .config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PoolingConfig,
    RenderConfig,
    SchedulerConfig,
)
from .errors import TrioserveError
from .launch import open_engine, open_pooling_engine
from .logits import LogitsProcessor, LogitsRow
from .pooling import PoolingInfo
from .pooling_engine import Classification, PoolingEngine, ScoreOptions, Scores
from .steps import SamplingParams
from .text_engine import TextDelta, TextEngine, TextStream

__all__ = [
    "CacheConfig",
    "Classification",
    "EngineConfig",
    "LogitsProcessor",
    "LogitsRow",
    "ModelConfig",
    "PoolingConfig",
    "PoolingEngine",
    "PoolingInfo",
    "RenderConfig",
    "SamplingParams",
    "SchedulerConfig",
    "ScoreOptions",
    "Scores",
    "TextDelta",
    "TextEngine",
    "TextStream",
    "TrioserveError",
    "open_engine",
    "open_pooling_engine",
]
