"""The engine process: `python -m trioserve.startup.engine_process DESCRIPTOR PARENT`.

open.py starts it. It loads the model and steps the device. engine/process/messages.py
has its messages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..engine.process.core_server import host_clients, host_core
from ..engine.process.messages import EngineLoaded, StartEngine, ToEngine
from ..errors import StartupError
from ..processes import MessageStream, run_as_child
from ..processes.interpreter import settle_interpreter
from ..types.not_loaded import NotLoaded
from .adapters import load_adapters
from .core import open_core
from .held_memory import measure_held
from .loaded import LoadedCore
from .log_lines import set_up_logging


async def main(stream: MessageStream[Any]) -> None:
    """Load the model of the first message, and serve it."""
    begin = await stream.receive()
    assert isinstance(begin, StartEngine), "StartEngine comes first"
    set_up_logging(begin.log_level, origin=begin.origin)
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


if __name__ == "__main__":
    run_as_child(main, receives=ToEngine)
