"""The engine process: `python -m trioserve.startup.engine_process DESCRIPTOR PARENT`.

open.py starts it. It loads the model and steps the device. engine/process/messages.py
has its messages.
"""

from __future__ import annotations

from typing import Any

from ..engine.process.core_server import host_clients, host_core
from ..engine.process.messages import EngineLoaded, StartEngine, ToEngine
from ..errors import StartupError
from ..processes import MessageStream, run_as_child
from ..processes.interpreter import settle_interpreter
from ..types.not_loaded import NotLoaded
from .core import open_core
from .loaded import LoadedCore
from .log_lines import set_up_logging


async def main(stream: MessageStream[Any]) -> None:
    """Load the model of the first message, and serve it."""
    begin = await stream.receive()
    assert isinstance(begin, StartEngine), "StartEngine comes first"
    set_up_logging(begin.log_level)
    try:
        async with open_core(begin.config, begin.model_kind) as loaded:
            await _host(loaded, stream, is_shared=begin.is_shared)
    except StartupError as error:
        stream.send_nowait(NotLoaded.of(error))
        await stream.receive()


async def _host(
    loaded: LoadedCore, stream: MessageStream[Any], *, is_shared: bool
) -> None:
    await settle_interpreter()
    stream.send_nowait(EngineLoaded(info=loaded.info, pooling=loaded.pooling))
    if is_shared:
        await host_clients(loaded.core, stream)
    else:
        await host_core(loaded.core, stream)


if __name__ == "__main__":
    run_as_child(main, receives=ToEngine)
