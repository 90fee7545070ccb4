"""The work of the engine process: it loads the model and steps the device.

engine_process.py starts it. engine/process/messages.py has its messages.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from typing import Any

import trio

from ..engine.process.core_server import host_clients, host_core
from ..engine.process.messages import EngineLoaded, StartEngine
from ..errors import StartupError
from ..processes import MessageStream
from ..processes.interpreter import settle_interpreter
from ..types.not_loaded import NotLoaded
from .adapters import load_adapters
from .core import open_core
from .held_memory import measure_held
from .loaded import LoadedCore
from .log_lines import set_up_logging


async def host_engine(
    stream: MessageStream[Any], *, importing: Thread | None = None
) -> None:
    """Load the model of the first message, and serve it.

    Args:
      importing: a thread that imports torch.
    """
    begin = await stream.receive()
    assert isinstance(begin, StartEngine), "StartEngine comes first"
    set_up_logging(begin.log_level, origin=begin.origin)
    if importing is not None:
        # Two threads that import parts of torch may each wait for the other. Then Python lets
        # one of them go on with half a module.
        await trio.to_thread.run_sync(importing.join)
    try:
        async with open_core(begin.config, begin.model_kind) as loaded:
            await _host(loaded, stream, begin)
    except StartupError as error:
        await _refuse(error, stream)


async def _host(
    loaded: LoadedCore, stream: MessageStream[Any], begin: StartEngine
) -> None:
    async def announce() -> None:
        try:
            await load_adapters(loaded, begin.config.model)
        except StartupError as error:
            await _refuse(error, stream)
        info = replace(loaded.info, memory_bytes=measure_held(loaded.info))
        stream.send_nowait(EngineLoaded(info=info, pooling=loaded.pooling))

    await settle_interpreter()
    host = host_clients if begin.is_shared else host_core
    await host(loaded.core, stream, announce=announce)


async def _refuse(error: StartupError, stream: MessageStream[Any]) -> None:
    """Tell the parent that nothing is served; it ends this process."""
    stream.send_nowait(NotLoaded.of(error))
    await stream.receive()
