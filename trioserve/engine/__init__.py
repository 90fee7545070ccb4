"""Owns requests and the loop that steps the device.

It speaks token ids; it knows no text, no HTTP and no tensor. The doors are
`Engine.run`, which lives in somebody's nursery, and `Engine.open_stream`: leaving that
block is the only way to abort a request, and always enough.
"""

from .client import EngineClient
from .delivery import TokenStream
from .engine import Engine, EngineStatistics

__all__ = ["Engine", "EngineClient", "EngineStatistics", "TokenStream"]
