"""A server of a model or of a sleeping device, with its engine inside or outside.

`python -m kit.engines.server DEVICE MODE FOLDER` serves a sleeping device, with the
tokenizer in a folder. `python -m kit.engines.http_processes DEVICE NUMBER FOLDER` does so by
several HTTP processes.
"""

from __future__ import annotations

from pathlib import Path
import sys

from kit.engines.device import (
    DEVICES,
    MAX_MODEL_LEN,
    MOST_SEQUENCES,
    NUM_SEQUENCES,
    Device,
    sleep_sharply,
)
from kit.engines.engine_process import open_core
from kit.process import tell
from kit.server import write_serve_command
import trio

# The place of the engine: inside the server's process, or outside.
MODES = ("inside", "outside")

# Several HTTP processes, and their number. The engine is outside.
HTTP_MODES = {"2 HTTP": 2, "4 HTTP": 4}


def write_command(device: Device, mode: str, model: str, folder: Path) -> list[str]:
    """Write the command that starts a server."""
    if mode in HTTP_MODES:
        command = [sys.executable, "-m", "kit.engines.http_processes"]
        return [*command, device.name, str(HTTP_MODES[mode]), str(folder)]
    if device.step_seconds is not None:
        command = [sys.executable, "-m", "kit.engines.server"]
        return [*command, device.name, mode, str(folder)]
    place = "engine_process" if mode == "outside" else "no_engine_process"
    return write_serve_command(
        model,
        num_threads=1,
        max_num_seqs=NUM_SEQUENCES,
        kv_cache_memory="1GiB",
        max_model_len=2048,
        **{place: True},
    )


async def serve(device: Device, mode: str, folder: Path) -> None:
    """Serve a sleeping device until the process ends; log the address."""
    import hypercorn.trio

    from trioserve.config import HttpConfig, MediaConfig, RenderConfig
    from trioserve.engine.generation.engine import TokenEngine
    from trioserve.frontend import TextEngine
    from trioserve.http.connection import guard_connections, make_config
    from trioserve.http.state import ServerState
    from trioserve.processes.interpreter import settle_interpreter
    from trioserve.server.app import create_http_app
    from trioserve.testing.fake_device import make_info
    from trioserve.testing.renderers import load_renderer

    info = make_info(MAX_MODEL_LEN)
    renderer = load_renderer(folder, RenderConfig(), info=info, media=MediaConfig())
    state = ServerState(config=HttpConfig())
    trio.lowlevel.add_instrument(state.loop_stall)
    guard_connections(state.config)
    async with open_core(device, mode) as core, trio.open_nursery() as nursery:
        engine = TokenEngine(core, info=info, max_num_sequences=2 * MOST_SEQUENCES)
        state.engine = TextEngine(engine, renderer)
        await nursery.start(engine.run)
        await settle_interpreter()
        binds = await nursery.start(
            hypercorn.trio.serve,
            create_http_app(state),
            make_config(bind=["127.0.0.1:0"]),
        )
        tell(f"ready after a moment: {device.name} on {binds[0]}")


def main() -> None:
    from trioserve.processes.interpreter import prepare_interpreter

    name, mode, folder = sys.argv[1:]
    sleep_sharply()
    prepare_interpreter()
    trio.run(serve, DEVICES[name], mode, Path(folder))


if __name__ == "__main__":
    main()
