"""Owns requests and the loop that steps the device.

It speaks token ids; it knows no text, no HTTP and no tensor. The doors are `run`, which
lives in somebody's nursery, and `Engine.open_stream` for models that write,
`PoolingLoop.open_request` for models that pool: leaving that block is the only way to
abort a request, and always enough.
"""

from .client import EngineClient
from .core import GenerationCore, LocalCore
from .delivery import StreamPhase, TokenStream
from .engine import Engine, EngineStatistics
from .hosting import host_core, host_pooling_core
from .pooling import PoolingEngineStatistics, PoolingLoop, PoolingRequest
from .pooling_admission import check_params
from .pooling_core import LocalPoolingCore, PoolingCore
from .remote import EngineProcessDied, RemoteCore, RemotePoolingCore

__all__ = [
    "Engine",
    "EngineClient",
    "EngineStatistics",
    "EngineProcessDied",
    "GenerationCore",
    "LocalCore",
    "LocalPoolingCore",
    "PoolingCore",
    "PoolingEngineStatistics",
    "PoolingLoop",
    "PoolingRequest",
    "RemoteCore",
    "RemotePoolingCore",
    "StreamPhase",
    "TokenStream",
    "check_params",
    "host_core",
    "host_pooling_core",
]
