"""A server that can render on its event loop, and reports the figures of the loop.

`python -m kit.rendering.server MODE FOLDER` serves the model in a folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
import sys
from typing import TYPE_CHECKING, TypeVar

from kit.loop_report import LoopReport, report_loop
from kit.process import BENCH_FOLDER, Child, find_on_path, open_child, open_stdin
import msgspec
import trio

if TYPE_CHECKING:
    from trioserve.server.app import ServingApp

T = TypeVar("T")

# The place of rendering: the loop; threads; threads, and a process for templates.
MODES = ("inline", "threads", "processes")

# More than the 8192 vectors and one token; the long chats have 6300 tokens.
MAX_MODEL_LEN = 9216


class RenderingServer:
    """The parent's handle of a server process."""

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.port = port

    async def reset(self) -> None:
        """Reset the figures of the server's loop."""
        await self._child.ask("reset")

    async def report(self) -> LoopReport:
        return msgspec.json.decode(await self._child.ask("report"), type=LoopReport)


@asynccontextmanager
async def open_rendering_server(
    mode: str, folder: Path
) -> AsyncIterator[RenderingServer]:
    """Run a server of one of the modes until the block is left."""
    command = [sys.executable, "-m", "kit.rendering.server", mode, str(folder)]
    environment = find_on_path(BENCH_FOLDER)
    async with open_child(command, name="the server", environment=environment) as child:
        yield RenderingServer(child, int(await child.read()))


async def serve(mode: str, folder: Path) -> None:
    """Run the server process: print the port, and answer lines until the input ends."""
    import hypercorn.trio

    from trioserve.asgi import create_app
    from trioserve.http.connection import make_config

    if mode == "inline":
        render_inline()
    app = create_app(
        str(folder),
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        kv_cache_memory="64MiB",
        enable_prompt_embeds=True,
        max_body_size="256MiB",
        renderer_num_workers=1,
        renderer_processes=1 if mode == "processes" else 0,
    )
    config = make_config(bind=["127.0.0.1:0"])
    async with trio.open_nursery() as nursery:
        binds = await nursery.start(hypercorn.trio.serve, app, config)
        print(binds[0].rpartition(":")[2], flush=True)
        await _obey(app)
        nursery.cancel_scope.cancel()


def render_inline() -> None:
    """Replace two methods of RendererWorkers, so that work is called on the loop.

    The server has no such option.
    """
    from trioserve.render import RendererWorkers

    async def run(
        self: RendererWorkers, work: Callable[[], T], *, expected_seconds: float = 0.0
    ) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    async def run_limited(
        self: RendererWorkers,
        work: Callable[[], T],
        seconds: float,
        *,
        expected_seconds: float = 0.0,
    ) -> T:
        return await run(self, work)

    setattr(RendererWorkers, "run", run)
    setattr(RendererWorkers, "run_limited", run_limited)


async def _obey(app: ServingApp) -> None:
    """Answer "reset" and "report", a line each, until there are no more lines."""
    lines = open_stdin()
    while (line := await lines.read()) is not None:
        if line == b"reset":
            app.state.loop_stall.reset()
            print("done", flush=True)
        else:
            report = report_loop(app.state)
            print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    trio.run(serve, sys.argv[1], Path(sys.argv[2]))
