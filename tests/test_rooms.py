"""Imports point one way: the layout is the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
import os
from pathlib import Path
import subprocess
import sys

import pytest

import trioserve

PACKAGE = Path(__file__).parent.parent / "trioserve"

# Rooms that every room may import.
SHARED = {"errors", "types", "config", "observe", "threads"}

# Room -> what it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "config": {"errors", "types"},
    "types": {"errors"},
    "observe": {"errors"},
    "threads": set(),
    "scheduler": SHARED,
    "kernels": set(),
    "grammar": {"errors", "threads", "types"},
    "model": SHARED | {"kernels", "grammar"},
    "render": SHARED | {"grammar"},
    "weights": SHARED,
    "processes": SHARED,
    "fronts": SHARED | {"processes"},
    "executor": SHARED,
    "engine": SHARED | {"scheduler", "executor", "processes"},
    "frontend": SHARED | {"engine", "render"},
    "http": SHARED | {"_version", "engine", "render", "frontend"},
    "pipeline": SHARED | {"executor", "processes"},
    "startup": SHARED
    | {
        "_version",
        "engine",
        "executor",
        "frontend",
        "fronts",
        "grammar",
        "http",
        "model",
    }
    | {"pipeline"}
    | {"processes", "render", "scheduler", "weights"},
    "asgi": SHARED | {"http", "processes", "startup"},
    "simulation": SHARED | {"engine", "executor", "scheduler", "testing"},
    "top": {"errors", "config"},
    "chat": SHARED | {"frontend", "startup"},
    "load": {"errors", "config"},
    "batch": SHARED | {"engine", "load", "startup"},
    "commands": SHARED
    | {"batch", "chat", "kernels", "load", "pipeline", "processes", "simulation"}
    | {"_version", "startup", "top", "weights"},
    "__main__": {"_version", "commands", "errors"},
    "__init__": SHARED | {"_version", "frontend", "startup"},
    "testing": SHARED
    | {"engine", "executor", "frontend", "grammar", "http", "processes", "render"}
    | {"scheduler", "startup"},
}

# Package -> the only rooms that may import it.
ONLY_IN: dict[str, set[str]] = {
    # render decodes tensors of clients; threads stops torch between two calls.
    "torch": {
        *("model", "executor", "weights", "render", "types", "startup", "pipeline"),
        *("threads", "testing"),
    },
    "PIL": {"render"},
    "httpx2": {"render"},
    # render fetches images; chat talks to servers.
    "httpcore2": {"chat", "render"},
    "pybase64": {"render"},
    "orjson": {"render"},
    "llguidance": {"grammar", "model", "startup"},
    "transformers": {"model", "weights", "render", "testing"},
    "quart": {"http"},
    "quart_trio": {"http"},
    "werkzeug": {"http"},
    "hypercorn": {"http", "startup", "testing"},
    "prometheus_client": {"observe", "http"},
    "matplotlib": {"load", "simulation"},
    "tqdm": {"batch", "load"},
    "opentelemetry": {"http"},
    "prompt_toolkit": {"chat"},
    "socksio": {"chat"},
    "rich": {"chat"},
    "markdown_it": {"chat"},
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
        if kind == "own":
            assert name in MAY_IMPORT[room] | {room}, f"{room} imports {name}"
        if kind == "other":
            assert room in ONLY_IN.get(name, {room}), f"{room} imports {name}"
            assert name not in NOT_IN.get(room, set()), f"{room} imports {name}"


def test_the_root_holds_doors_and_shared_modules() -> None:
    rooms = {room_of(path) for path in MODULES}
    assert rooms == set(MAY_IMPORT)
    assert len(rooms) <= 30
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def name_module(path: Path) -> tuple[str, ...]:
    return path.relative_to(PACKAGE.parent).with_suffix("").parts


MODULE_NAMES = {name_module(path) for path in MODULES}


def find_module(name: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the module of a dotted name; a package's is its `__init__`."""
    return next((m for m in (name, (*name, "__init__")) if m in MODULE_NAMES), None)


def list_own_imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield our modules that a module imports, even if only for types."""
    folder = name_module(path)[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1]
            base += tuple(node.module.split(".")) if node.module else ()
            for name in node.names:
                if found := find_module((*base, name.name)) or find_module(base):
                    yield found


def list_folder_imports() -> dict[tuple[str, ...], dict[str, set[str]]]:
    """Return, for each folder, which of its modules and sub-folders import which."""
    graphs: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for path in MODULES:
        importer = name_module(path)
        for imported in list_own_imports(path):
            depth = len(os.path.commonprefix([importer, imported]))
            if depth < len(importer):
                graph = graphs.setdefault(importer[:depth], {})
                graph.setdefault(importer[depth], set()).add(imported[depth])
    return graphs


@pytest.mark.parametrize(
    ("folder", "graph"), list_folder_imports().items(), ids=lambda x: "/".join(x)
)
def test_no_folder_has_a_circle_of_imports(
    folder: tuple[str, ...], graph: dict[str, set[str]]
) -> None:
    """A sub-folder counts as one module of its folder, and `__init__` as another."""
    # Raises CycleError, which names the circle.
    list(TopologicalSorter(graph).static_order())


def test_only_the_connection_guard_uses_hypercorns_private_names() -> None:
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


def list_loaded(imports: str, names: tuple[str, ...]) -> str:
    """Return those of some modules that a new interpreter has after an import."""
    script = (
        f"import sys, {imports}\n"
        f"print([name for name in {names} if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return loaded.stdout.strip()


def test_importing_the_package_loads_nothing_large() -> None:
    """--help must be fast, and an interrupt must have an effect from the beginning."""
    large = ("torch", "transformers", "quart", "trio", "msgspec")
    assert list_loaded("trioserve, trioserve.__main__", large) == "[]"


def test_a_server_starts_its_engine_before_it_imports_its_app() -> None:
    large = ("torch", "transformers", "quart", "flask", "werkzeug")
    modules = "trioserve.startup.server, trioserve.startup.one_process"
    assert list_loaded(modules, large) == "[]"


def test_the_parent_of_front_processes_imports_no_http() -> None:
    large = ("torch", "quart", "hypercorn", "trioserve.http")
    modules = "trioserve.startup.server, trioserve.startup.supervisor"
    assert list_loaded(modules, large) == "[]"


@pytest.mark.parametrize("name", trioserve.__all__)
def test_a_public_name_is_imported_when_it_is_used(name: str) -> None:
    assert getattr(trioserve, name).__name__ == name
    assert name in dir(trioserve)
