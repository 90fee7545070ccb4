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

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
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

# Where public names come from. They are imported when somebody asks for them: that takes a
# third of a second, in which the command could not answer an interrupt.
_HOMES = {
    "config": (
        "CacheConfig",
        "EngineConfig",
        "ModelConfig",
        "PoolingConfig",
        "RenderConfig",
        "SchedulerConfig",
    ),
    "errors": ("TrioserveError",),
    "launch": ("open_engine", "open_pooling_engine"),
    "logits": ("LogitsProcessor", "LogitsRow"),
    "pooling": ("PoolingInfo",),
    "pooling_engine": ("Classification", "PoolingEngine", "ScoreOptions", "Scores"),
    "steps": ("SamplingParams",),
    "text_engine": ("TextDelta", "TextEngine", "TextStream"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name == home or name in names:
                module = import_module(f".{home}", __name__)
                return module if name == home else getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
