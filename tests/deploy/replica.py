"""`trioserve serve` over a fake device, which starts in two seconds: all but the model is real.

python replica.py TOKENIZER_FOLDER --port 8000
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import logging
from pathlib import Path
import sys

from trioserve.__main__ import main
from trioserve.frontend import PoolingEngine, TextEngine
from trioserve.startup import one_process
from trioserve.testing.server import open_fake_server

FOLDER, *OPTIONS = sys.argv[1:]


@asynccontextmanager
async def open_engine(*_: object, **__: object) -> AsyncIterator[object]:
    """Run an engine whose streams of 400 tokens take one second."""
    # It listens on a port of its own, too, of which nobody shall know.
    logging.getLogger("hypercorn.error").setLevel(logging.WARNING)
    async with open_fake_server(
        Path(FOLDER), step_seconds=0.0025, max_model_len=512
    ) as fake:
        assert isinstance(fake.state.engine, (TextEngine, PoolingEngine))
        yield fake.state.engine


vars(one_process)["open_served_engine"] = open_engine
sys.exit(main(["serve", "fake", *OPTIONS]))
