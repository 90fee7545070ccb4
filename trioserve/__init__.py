"""trioserve: an LLM inference server whose every request is one cancel scope.

    trioserve serve                                        the command line
    hypercorn -w 0 -k trio 'trioserve.asgi:create_app()'   behind hypercorn
    async with trioserve.open_engine() as engine: ...      in any trio program
    async with trioserve.open_pooling_engine("...") as engine: ...      the same
    async with trioserve.open_models({"a": ..., "b": ...}) as models: ...      several

General layout: `types`, `errors`, `config`, `observe` and `threads` are shared by every room.
`scheduler`, `model`, `render` and `weights` do not know each other. `executor` runs `model`
in this process, and `pipeline` runs it in several. `engine` runs `scheduler` and `executor`.
`frontend` joins `engine` and `render`, `http` serves `frontend`, and `startup` builds all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .types import version as _version

__version__ = _version.__version__

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
    from .frontend import (
        Classification,
        PoolingEngine,
        ScoreOptions,
        Scores,
        TextEngine,
        TextStream,
    )
    from .startup.models import open_models
    from .startup.open import open_engine, open_pooling_engine
    from .types.logits import LogitsProcessor, LogitsRow
    from .types.output import TextDelta, ToolCallDelta
    from .types.pooling import PoolingInfo
    from .types.repetition import RepetitionDetection
    from .types.sampling import SamplingParams
    from .types.structured import StructuredOutput

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
    "RepetitionDetection",
    "SamplingParams",
    "SchedulerConfig",
    "ScoreOptions",
    "Scores",
    "StructuredOutput",
    "TextDelta",
    "TextEngine",
    "TextStream",
    "ToolCallDelta",
    "TrioserveError",
    "open_engine",
    "open_models",
    "open_pooling_engine",
]

# The modules of the public names. Each is imported at its first use: to import all
# takes a third of a second, during which the command could not react to an interrupt.
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
    "startup.models": ("open_models",),
    "startup.open": ("open_engine", "open_pooling_engine"),
    "types.logits": ("LogitsProcessor", "LogitsRow"),
    "types.pooling": ("PoolingInfo",),
    "frontend": (
        "Classification",
        "PoolingEngine",
        "ScoreOptions",
        "Scores",
        "TextEngine",
        "TextStream",
    ),
    "types.repetition": ("RepetitionDetection",),
    "types.sampling": ("SamplingParams",),
    "types.structured": ("StructuredOutput",),
    "types.output": ("TextDelta", "ToolCallDelta"),
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
