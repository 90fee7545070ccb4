"""trioserve: an LLM inference server whose every request is one cancel scope.

    trioserve serve                                        the command line
    hypercorn -w 0 -k trio 'trioserve.asgi:create_app()'   behind hypercorn
    async with trioserve.open_engine() as engine: ...      in any trio program

General layout: `steps`, `errors` and `config` are the vocabulary that every room shares;
`scheduler`, `model`, `render` and `weights` know nothing of each other; `executor` runs
`model`, `engine` runs `scheduler` and `executor`, `text_engine` joins `engine` and
`render`, `launch` builds all of it, and `http` serves it.
"""

__version__ = "0.1.0"

from .config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    RenderConfig,
    SchedulerConfig,
)
from .errors import TrioserveError
from .launch import open_engine
from .steps import SamplingParams
from .text_engine import TextDelta, TextEngine, TextStream

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "RenderConfig",
    "SamplingParams",
    "SchedulerConfig",
    "TextDelta",
    "TextEngine",
    "TextStream",
    "TrioserveError",
    "open_engine",
]
