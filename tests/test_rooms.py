"""Imports point one way: the layout is the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
import subprocess
import sys

import pytest

import trioserve

PACKAGE = Path(__file__).parent.parent / "trioserve"

VOCABULARY = {
    *("errors", "steps", "pooling", "sentence", "config", "observe"),
    *("logits", "exchanges", "stopping", "shortage"),
}

# Room -> what it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "foreign_options": set(),
    "config": {"errors", "foreign_options"},
    "steps": {"errors"},
    "exchanges": {"steps"},
    "pooling": {"steps"},
    "sentence": set(),
    "logits": set(),
    "plugins": {"errors", "logits"},
    "observe": set(),
    "scheduler": VOCABULARY,
    "model": VOCABULARY,
    "render": VOCABULARY,
    "weights": VOCABULARY,
    "executor": VOCABULARY | {"model", "processes"},
    "stopping": set(),
    "shortage": {"errors"},
    "own_thread": {"stopping"},
    "interpreter": set(),
    "processes": {"interpreter", "steps"},
    "engine": VOCABULARY | {"scheduler", "executor", "processes"},
    "engine_task": VOCABULARY,
    "text_engine": VOCABULARY | {"engine", "render"},
    "pooling_engine": VOCABULARY | {"engine", "render"},
    "http": VOCABULARY | {"engine", "render", "text_engine", "pooling_engine"},
    "torchrun": VOCABULARY,
    "meeting": VOCABULARY | {"own_thread", "torchrun"},
    "stages": VOCABULARY | {"executor", "meeting", "processes", "torchrun"},
    "pipeline": VOCABULARY | {"executor", "stages"},
    "stage_process": VOCABULARY
    | {"cores", "executor", "interpreter", "meeting", "model", "own_thread", "plugins"}
    | {"processes", "torchrun", "weights"},
    "cores": VOCABULARY
    | {"engine", "executor", "model", "own_thread", "pipeline", "plugins"}
    | {"scheduler", "weights"},
    "engine_process": VOCABULARY
    | {"cores", "engine", "executor", "interpreter", "processes"},
    "fronts": VOCABULARY
    | {"cores", "engine", "own_thread", "plugins", "pooling_engine", "render"}
    | {"text_engine"},
    "launch": VOCABULARY
    | {"cores", "engine", "engine_task", "executor", "fronts", "pooling_engine"}
    | {"processes", "render", "text_engine"},
    "server": VOCABULARY | {"http", "interpreter", "launch"},
    "asgi": VOCABULARY | {"http", "interpreter", "launch"},
    "simulation": VOCABULARY | {"engine", "executor", "scheduler", "testing"},
    "__main__": VOCABULARY
    | {"foreign_options", "processes", "server", "simulation", "stage_process"}
    | {"torchrun"},
    "__init__": VOCABULARY | {"launch", "pooling_engine", "text_engine"},
    "testing": {"executor", "pooling", "steps"},
    "testing_server": VOCABULARY
    | {"engine", "http", "pooling_engine", "render", "scheduler", "testing"}
    | {"text_engine"},
    "testing_processes": {"engine", "processes"},
    "testing_encoders": set(),
    "testing_models": {"testing_processors"},
    "testing_processors": {"testing_tokenizer"},
    "testing_tokenizer": set(),
}

# Package -> the only rooms that may import it.
ONLY_IN: dict[str, set[str]] = {
    # render decodes tensors that clients send.
    "torch": {
        *("model", "executor", "weights", "render", "logits", "stage_process"),
        *("torchrun", "stopping"),
        *("testing_encoders", "testing_models"),
    },
    "PIL": {"render"},
    "httpx2": {"render"},
    "httpcore2": {"render"},
    "pybase64": {"render"},
    "orjson": {"render"},
    "transformers": {
        *("model", "weights", "render"),
        *("testing_encoders", "testing_models", "testing_processors"),
        "testing_tokenizer",
    },
    "quart": {"http"},
    "quart_trio": {"http"},
    "werkzeug": {"http"},
    "hypercorn": {"http", "server", "testing_server"},
    "prometheus_client": {"observe", "http"},
    "tyro": {"__main__"},
    "matplotlib": {"simulation"},
}
NOT_IN: dict[str, set[str]] = {
    "scheduler": {"trio", "logging", "time", "random"},
    "model": {"trio"},
    "weights": {"trio"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(PACKAGE.rglob("*.py"))


def list_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield ("own", room) and ("other", package) for each import of a module."""
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield "other", name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                yield "other", (node.module or "").split(".")[0]
            elif node.level == depth:
                names = [node.module] if node.module else [a.name for a in node.names]
                for name in names:
                    yield "own", (name or "").split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    for kind, name in list_imports(path):
        if kind == "own" and name != "__version__":
            assert name in MAY_IMPORT[room] | {room}, f"{room} imports {name}"
        if kind == "other":
            assert room in ONLY_IN.get(name, {room}), f"{room} imports {name}"
            assert name not in NOT_IN.get(room, set()), f"{room} imports {name}"


def test_only_the_connection_guard_knows_hypercorns_private_names() -> None:
    public = {"hypercorn.trio", "hypercorn.typing", "hypercorn.config"}
    for path in MODULES:
        if path.parent.name == "connection":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("hypercorn") or name in public


def test_importing_the_package_loads_nothing_large() -> None:
    """--help must not take seconds, and an interrupt be answered from the first moment."""
    large = ("torch", "transformers", "quart", "trio", "msgspec", "tyro")
    script = (
        "import sys, trioserve, trioserve.__main__\n"
        f"print([name for name in {large} if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("name", trioserve.__all__)
def test_a_public_name_is_there_when_it_is_asked_for(name: str) -> None:
    assert getattr(trioserve, name).__name__ == name
    assert name in dir(trioserve)
