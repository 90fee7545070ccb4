"""The engine process of a server whose device sleeps.

open_core runs it, as `python -m kit.engines.engine_process DESCRIPTOR PARENT`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import os
from typing import TYPE_CHECKING, Any

from kit.engines.device import DEVICES, MAX_MODEL_LEN, Device, make_core, sleep_sharply

if TYPE_CHECKING:
    from trioserve.processes import MessageStream

# The environment variable that names the device of an engine process.
DEVICE_VARIABLE = "TRIOSERVE_BENCH_DEVICE"

# The variable that is set if http_processes.py has started it, for several HTTP processes.
SHARED_VARIABLE = "TRIOSERVE_BENCH_SHARED"


@asynccontextmanager
async def open_core(device: Device, mode: str) -> AsyncIterator[Any]:
    """Make a core in this process, or in another one, as the server does."""
    from trioserve.engine.process.messages import FromEngine
    from trioserve.engine.process.remote import RemoteCore
    from trioserve.processes import open_child

    if mode == "inside":
        yield make_core(device)
        return
    async with open_child(
        "kit.engines.engine_process",
        receives=FromEngine,
        name="the engine process",
        environment={DEVICE_VARIABLE: device.name},
    ) as child:
        yield RemoteCore(child.stream, child.describe_end)


def main() -> None:
    """Run the engine process."""
    from trioserve.engine.process.core_server import host_clients, host_core
    from trioserve.engine.process.messages import EngineLoaded, ToEngine
    from trioserve.processes import run_as_child
    from trioserve.processes.interpreter import settle_interpreter
    from trioserve.testing.fake_device import make_info

    async def host(stream: MessageStream[Any]) -> None:
        core = make_core(DEVICES[os.environ[DEVICE_VARIABLE]])
        await settle_interpreter()
        if SHARED_VARIABLE not in os.environ:
            await host_core(core, stream)
            return
        await stream.receive()
        stream.send_nowait(EngineLoaded(info=make_info(MAX_MODEL_LEN), pooling=None))
        await host_clients(core, stream)

    sleep_sharply()
    run_as_child(host, receives=ToEngine)


if __name__ == "__main__":
    main()
