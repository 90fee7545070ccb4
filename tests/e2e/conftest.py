"""Real servers in their own processes, with tiny models and a real tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import os
from pathlib import Path
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from server_process import END_SECONDS, SERVE, ServerProcess, start_process
from warm_start import WarmClient

from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer

if TYPE_CHECKING:
    from openai import OpenAI

PLUGIN_PAGE = Path(__file__).parents[2] / "docs" / "reasoning-and-plugins.rst"


@pytest.fixture(scope="session", autouse=True)
def started_helper(helper: WarmClient) -> None:
    """Start the helper of warm_start.py, a child of this process, before tests count them."""
    helper.connect()


@pytest.fixture(scope="module")
def with_transformers(helper: WarmClient) -> None:
    """Let processes of this file have what models need that have modules of transformers."""
    helper.preload("transformers.models.llama.modeling_llama")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let interrupts reach servers when pytest is a script's background process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_shared_memory_left() -> Iterator[None]:
    """Check that the test leaves no shared memory behind."""
    before = set(os.listdir("/dev/shm"))
    yield
    # Other programs of this machine also use shared memory for a while.
    deadline = time.monotonic() + END_SECONDS
    while new := set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < deadline, f"{new} stays"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the vocabulary of the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    save_tiny_model(
        "llama",
        folder,
        vocab_size=512,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
    )
    return tiny_tokenizer(folder)


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in of docs/: my_processors.NoRepeat, called no-repeat."""
    blocks = re.findall(r":: python\n\n((?:    .*\n|\n)+)", PLUGIN_PAGE.read_text())
    (block,) = (block for block in blocks if "(LogitsProcessor):" in block)
    source = "\n".join(line[4:] for line in block.splitlines())
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "my_processors.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts `trioserve serve` with some arguments."""
    with ExitStack() as stack:

        def start(*arguments: str, executable: str | None = None) -> ServerProcess:
            command = [*SERVE, *arguments, "--port", "0"]
            return start_process(stack, command, executable)

        yield start


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    """OpenAI's client of the file's server, or of the shared one."""
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="session")
def server(model_folder: Path, plugin_folder: Path) -> Iterator[ServerProcess]:
    """One server for all tests that leave it as they found it."""
    with ExitStack() as stack:
        yield start_process(
            stack,
            [
                *(*SERVE, str(model_folder), "--port", "0"),
                *("--kv-cache-memory", "64MiB", "--num-threads", "1"),
                *("--progress-timeout", "2", "--max-logprobs", "-1"),
                *("--logits-processor", "my_processors:NoRepeat"),
            ],
            PYTHONPATH=str(plugin_folder),
        )
