"""Owns requests and the loop that steps the device.

It speaks token ids; it knows no text, no HTTP and no tensor. The doors are `run`, which
lives in somebody's nursery, and `Engine.open_stream` for models that write,
`PoolingLoop.open_request` for models that pool: leaving that block is the only way to
abort a request, and always enough.
"""

from .generation.client import EngineClient
from .generation.core import GenerationCore, LocalCore
from .generation.engine import Engine, EngineStatistics
from .generation.token_stream import StreamPhase, TokenStream
from .pooling.admission import check_params
from .pooling.core import LocalPoolingCore, PoolingCore
from .pooling.engine import PoolingEngineStatistics, PoolingLoop, PoolingRequest
from .process.core_server import host_core, host_pooling_core
from .process.remote import EngineProcessDied, RemoteCore, RemotePoolingCore

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
