"""Owns requests and the loop that steps the device.

It speaks token ids; it knows no text, no HTTP and no tensor. The doors are `run`, which
lives in somebody's nursery, and `Engine.open_stream` for models that write,
`PoolingLoop.open_request` for models that pool: leaving that block is the only way to
abort a request, and always enough.
"""

from .client import EngineClient
from .core import LocalCore
from .delivery import TokenStream
from .engine import Engine, EngineStatistics
from .pooling import PoolingEngineStatistics, PoolingLoop, PoolingRequest
from .pooling_admission import check_params
from .pooling_core import LocalPoolingCore

__all__ = [
    "Engine",
    "EngineClient",
    "EngineStatistics",
    "LocalCore",
    "LocalPoolingCore",
    "PoolingEngineStatistics",
    "PoolingLoop",
    "PoolingRequest",
    "TokenStream",
    "check_params",
]
