"""Every error that leaves trioserve, with its HTTP status and code.

    TrioserveError
    * RequestError                  client.py: the client can mend it
      - InvalidParameter            400
      - ContextLengthExceeded       400
      - NotSupported                400
      - InvalidAdapter              400
      - AdapterRefused              400
      - AdapterNotFound             404
      - Unauthorized                401
      - AdminKeyNeeded              403
      - ModelNotFound               404
      - ResponseNotFound            404
      - RequestNotFound             404
      - StreamNotFound              404
      - ResponseTooLarge            400
      - EndpointOff                 404
      - TaskNotServed               400
      - UploadTooSlow               408
      - ReaderTooSlow               408; only in streams
      - PayloadTooLarge             413
      - UnsupportedMediaType        415
      - HostNotAllowed              421
      - MalformedRequest            400, 431, 501 or 505
    * Unavailable                   capacity.py: full or stopping; has `retry_after_seconds`
      - QueueFull                   429
      - RendererFull                429
      - BackgroundFull              429
      - KeyLimitReached             429
      - DeadlineUnreachable         503
      - RendererStuck               503
      - MemoryFull                  503
      - DescriptorsFull             503
      - ShuttingDown                503
      - ModelLoading                503
      - ModelFailed                 503; one of several models
      - EngineRestarting            503
      - EngineAsleep                503
    * RequestEnded                  base.py: ended before its time, by the client's wish
      - RequestCancelled            499; somebody ended the request by its id
      - DeadlineExceeded            504; the request's own time limit has passed
    * InternalError                 500; a defect ended only this request
    * EngineDied                    500; the engine is broken, nothing can be retried
    * EngineStalled                 503; only an answer of /progressz
    * StartupError                  operator.py: the command line ends with 2
      - WeightsNotFound
      - WeightsBroken
      - UnsupportedModel
      - UnsupportedQuantization
      - NotEnoughMemory
      - InvalidConfig
      - ForeignOption
      - MissingExtra
      - PluginBroken
      - StagesNotMet

Constructors take facts and write the message. Beside the tree, foreign_text makes texts of others
safe to show.
"""

from __future__ import annotations

from .base import (
    DeadlineExceeded,
    EngineDied,
    EngineProcessDied,
    EngineStalled,
    InternalError,
    RequestCancelled,
    RequestEnded,
    TrioserveError,
    find_first,
)
from .capacity import (
    BackgroundFull,
    DeadlineUnreachable,
    DescriptorsFull,
    EngineAsleep,
    EngineRestarting,
    KeyLimitReached,
    MemoryFull,
    ModelFailed,
    ModelLoading,
    QueueFull,
    RendererFull,
    RendererStuck,
    ShuttingDown,
    Unavailable,
)
from .client import (
    AdapterNotFound,
    AdapterRefused,
    AdminKeyNeeded,
    ContextLengthExceeded,
    EndpointOff,
    HostNotAllowed,
    InvalidAdapter,
    InvalidParameter,
    MalformedRequest,
    ModelNotFound,
    NotSupported,
    PayloadTooLarge,
    ReaderTooSlow,
    RequestError,
    RequestNotFound,
    ResponseNotFound,
    ResponseTooLarge,
    StreamNotFound,
    TaskNotServed,
    Unauthorized,
    UnsupportedMediaType,
    UploadTooSlow,
)
from .foreign_text import (
    escape,
    escape_ascii,
    escape_json,
    join_names,
    list_choices,
    list_some,
    make_line,
    make_safe,
    quote,
    shorten_message,
)
from .operator import (
    ForeignOption,
    InvalidConfig,
    MissingExtra,
    NotEnoughMemory,
    PluginBroken,
    StagesNotMet,
    StartupError,
    UnsupportedModel,
    UnsupportedQuantization,
    WeightsBroken,
    WeightsNotFound,
    needing_extra,
)

__all__ = [
    "TrioserveError",
    "RequestError",
    "InvalidParameter",
    "ContextLengthExceeded",
    "NotSupported",
    "InvalidAdapter",
    "AdapterRefused",
    "AdapterNotFound",
    "Unauthorized",
    "AdminKeyNeeded",
    "ModelNotFound",
    "ResponseNotFound",
    "RequestNotFound",
    "StreamNotFound",
    "ResponseTooLarge",
    "EndpointOff",
    "TaskNotServed",
    "UploadTooSlow",
    "ReaderTooSlow",
    "PayloadTooLarge",
    "UnsupportedMediaType",
    "HostNotAllowed",
    "MalformedRequest",
    "Unavailable",
    "QueueFull",
    "RendererFull",
    "BackgroundFull",
    "KeyLimitReached",
    "DeadlineUnreachable",
    "RendererStuck",
    "MemoryFull",
    "DescriptorsFull",
    "ShuttingDown",
    "ModelFailed",
    "ModelLoading",
    "EngineRestarting",
    "EngineAsleep",
    "RequestEnded",
    "RequestCancelled",
    "DeadlineExceeded",
    "InternalError",
    "EngineDied",
    "EngineProcessDied",
    "EngineStalled",
    "StartupError",
    "WeightsNotFound",
    "WeightsBroken",
    "UnsupportedModel",
    "UnsupportedQuantization",
    "NotEnoughMemory",
    "InvalidConfig",
    "ForeignOption",
    "MissingExtra",
    "PluginBroken",
    "StagesNotMet",
    "find_first",
    "needing_extra",
    "escape",
    "escape_ascii",
    "escape_json",
    "list_some",
    "join_names",
    "list_choices",
    "make_line",
    "make_safe",
    "quote",
    "shorten_message",
]
