"""The engine process: `python -m trioserve.engine_process DESCRIPTOR PARENT`.

Started by launch.py, whose requests it serves: it loads the model and steps the device.
What it is told and what it tells, engine/messages.py says.
"""

from __future__ import annotations

from functools import partial
import gc
import logging
import sys
from typing import Any

from .cores import LoadedCore, find_source, load_core
from .engine import LocalCore, host_core, host_pooling_core
from .engine.messages import Begin, Loaded, NotLoaded, ToEngine
from .errors import StartupError
from .own_thread import OwnThread
from .processes import MessageStream, run_as_child


async def main(stream: MessageStream[Any]) -> None:
    """Load what the other side asks for, and serve it."""
    begin = await stream.receive()
    assert isinstance(begin, Begin), "that comes first"
    logging.basicConfig(
        level=begin.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # As in server.py: planning must not wait for the device's thread.
    sys.setswitchinterval(0.0005)
    try:
        loaded = await OwnThread(partial(_load, begin)).wait()
    except StartupError as error:
        stream.send_nowait(NotLoaded(kind=type(error).__name__, reason=str(error)))
        await stream.receive()
        return
    gc.freeze()
    stream.send_nowait(Loaded(info=loaded.info, pooling=loaded.pooling))
    if isinstance(loaded.core, LocalCore):
        await host_core(loaded.core, stream)
    else:
        await host_pooling_core(loaded.core, stream)


def _load(begin: Begin) -> LoadedCore:
    return load_core(begin.config, find_source(begin.config, begin.accepts))


if __name__ == "__main__":
    run_as_child(main, receives=ToEngine)
