"""The engine: it owns requests and the loop that steps the device.

It works with token ids. It does not know text, HTTP or tensor libraries. The doors are
`Engine.run`, which lives in a nursery, and two ways to open a request:
`TokenEngine.open_stream` for models that generate, `TensorEngine.open_request` for models
that pool. A request is aborted by leaving its block. `TokenStream.stop` ends a single
sequence early, and `Engine.close_requests` ends all requests with an error.

engine, requests, restarts, priority    the base of both engines, and its parts
core, loop                              the protocol of a core, and the loop that steps
leaks                                   finds work that outlives its request
peer_work                               the work of other engines on the same core
generation/  pooling/                   one engine each, with its core
process/                                cores in another process
"""

from .core import EngineProcessDied
from .engine import Engine
from .forecast import Forecast
from .generation.core import GenerationCore, LocalCore
from .generation.engine import TokenEngine, TokenEngineStatistics
from .generation.forecast import Demand
from .generation.token_stream import StreamPhase, TokenStream
from .leaks import EngineAudit
from .peer_work import PeerWork
from .pooling.admission import check_params
from .pooling.core import LocalPoolingCore, PoolingCore
from .pooling.engine import TensorEngine, TensorEngineStatistics
from .pooling.request import TensorRequest
from .process.client_ids import find_first_id
from .process.core_server import (
    CoreHost,
    GenerationHost,
    PoolingHost,
    host_clients,
    host_core,
    host_pooling_core,
)
from .process.remote import RemoteCore, RemotePoolingCore

__all__ = [
    "check_params",
    "CoreHost",
    "Demand",
    "Engine",
    "EngineAudit",
    "EngineProcessDied",
    "find_first_id",
    "Forecast",
    "GenerationCore",
    "GenerationHost",
    "host_clients",
    "host_core",
    "host_pooling_core",
    "LocalCore",
    "LocalPoolingCore",
    "PeerWork",
    "PoolingCore",
    "PoolingHost",
    "RemoteCore",
    "RemotePoolingCore",
    "StreamPhase",
    "TensorEngine",
    "TensorEngineStatistics",
    "TensorRequest",
    "TokenEngine",
    "TokenEngineStatistics",
    "TokenStream",
]
