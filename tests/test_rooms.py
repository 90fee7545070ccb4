"""Imports point one way: the layout is the architecture."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
import re
import subprocess
import sys

from imports import list_imports
import pytest

import trioserve

PACKAGE = Path(__file__).parent.parent / "trioserve"

# Room -> the other rooms that it imports. The doors are one room: "."
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "kernels": set(),
    "config": {"errors", "types"},
    "types": {"errors"},
    "observe": set(),
    "processes": {"config", "observe", "types"},
    "scheduler": {"types"},
    "grammar": {"errors", "processes", "types"},
    "model": {"config", "errors", "grammar", "kernels", "types"},
    "weights": {"errors", "observe", "processes", "types"},
    "executor": {"config", "errors", "processes", "types"},
    "render": {"config", "errors", "grammar", "observe", "types"},
    "engine": {"config", "errors", "executor", "observe", "processes", "types"}
    | {"scheduler"},
    "frontend": {"engine", "errors", "render", "types"},
    "http": {"config", "errors", "frontend", "observe", "processes", "render"}
    | {"types"},
    "api": {"errors", "frontend", "http", "render", "types"},
    "server": {"api", "engine", "errors", "frontend", "http", "observe", "render"}
    | {"types"},
    "startup": {"config", "engine", "errors", "executor", "frontend", "http"}
    | {"model", "processes", "render", "scheduler", "server", "types", "weights"},
    "testing": {"config", "engine", "executor", "frontend", "http", "processes"}
    | {"render", "scheduler", "server", "startup", "types"},
    "programs": {"config", "engine", "errors", "executor", "frontend", "kernels"}
    | {"processes", "scheduler", "startup", "types", "weights"},
    ".": {"config", "errors", "frontend", "programs", "startup", "types"},
}
MAX_ROOMS = 22
MAX_ARROWS = 100

# A folder may have no more modules of its own beside sub-folders.
MAX_LOOSE = 12

# Package -> the only rooms that may import it.
ONLY_IN: dict[str, set[str]] = {
    # render decodes tensors of clients; processes stops torch between two calls.
    "torch": {"executor", "kernels", "model", "processes", "render", "startup"}
    | {"testing", "types", "weights"},
    "triton": {"kernels", "model"},
    "PIL": {"render"},
    "httpx2": {"render"},
    # render fetches images; programs talk to servers.
    "httpcore2": {"programs", "render"},
    "pybase64": {"render"},
    "orjson": {"render"},
    "llguidance": {"grammar", "model", "render"},
    "transformers": {"model", "weights", "render", "testing"},
    "quart": {"api", "http", "server"},
    "quart_trio": {"http", "server"},
    "werkzeug": {"api", "http", "server"},
    "hypercorn": {"http", "server", "startup", "testing"},
    "prometheus_client": {"observe", "server"},
    "matplotlib": {"programs"},
    "tqdm": {"programs"},
    "opentelemetry": {"http"},
    "prompt_toolkit": {"programs"},
    "socksio": {"programs"},
    "rich": {"programs"},
    "markdown_it": {"programs"},
}
NOT_IN: dict[str, set[str]] = {
    "scheduler": {"trio", "logging", "time", "random"},
    "model": {"trio"},
    "weights": {"trio"},
}


MODULES = sorted(PACKAGE.rglob("*.py"))


def name_module(path: Path) -> tuple[str, ...]:
    return path.relative_to(PACKAGE).with_suffix("").parts


def find_room(module: tuple[str, ...]) -> str:
    return module[0] if len(module) > 1 else "."


MODULE_NAMES = {name_module(path) for path in MODULES}


def find_module(name: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the module of a dotted name; a package's is its `__init__`."""
    return next((m for m in (name, (*name, "__init__")) if m in MODULE_NAMES), None)


def list_own_imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield our modules that a module imports, even if only for types."""
    folder = name_module(path)[:-1]
    for node in list_imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1]
            base += tuple(node.module.split(".")) if node.module else ()
            for name in node.names:
                if found := find_module((*base, name.name)) or find_module(base):
                    yield found


def list_other_imports(path: Path) -> Iterator[str]:
    """Yield the modules of others that a module imports."""
    for node in list_imports(path):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif node.level == 0:
            yield node.module or ""


@cache
def find_imports() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    return {name_module(path): set(list_own_imports(path)) for path in MODULES}


def test_a_room_imports_exactly_what_the_table_says() -> None:
    imports: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for module, imported in find_imports().items():
        room = find_room(module)
        imports[room] |= {*map(find_room, imported)} - {room}
    assert imports == MAY_IMPORT


def test_packages_of_others_stay_in_their_rooms() -> None:
    for path in MODULES:
        room = find_room(name_module(path))
        for name in (each.split(".")[0] for each in list_other_imports(path)):
            assert room in ONLY_IN.get(name, {room}), f"{path} imports {name}"
            assert name not in NOT_IN.get(room, set()), f"{path} imports {name}"


def test_the_map_stays_small() -> None:
    assert {find_room(module) for module in MODULE_NAMES} == set(MAY_IMPORT)
    assert len(MAY_IMPORT) <= MAX_ROOMS
    assert sum(map(len, MAY_IMPORT.values())) <= MAX_ARROWS


FOLDERS = sorted(
    {module[:depth] for module in MODULE_NAMES for depth in range(len(module))}
)


@pytest.mark.parametrize("depth", range(max(map(len, FOLDERS)) + 1))
def test_a_folder_imports_its_sub_folders_or_is_imported_by_them(depth: int) -> None:
    """All modules of a folder count as one, and so does each of its sub-folders."""

    def find_node(module: tuple[str, ...]) -> str:
        return module[depth] if len(module) > depth + 1 else "."

    for folder in (each for each in FOLDERS if len(each) == depth):
        inside = {name for name in MODULE_NAMES if name[:depth] == folder}
        graph: dict[str, set[str]] = {}
        for module in inside:
            node = find_node(module)
            nodes = map(find_node, find_imports()[module] & inside)
            graph.setdefault(node, set()).update(n for n in nodes if n != node)
        # Raises CycleError, which names the circle.
        list(TopologicalSorter(graph).static_order())
        num_loose = len([name for name in inside if len(name) == depth + 1])
        has_folders = len(graph) > 1
        assert not has_folders or num_loose <= MAX_LOOSE + 1, folder


# A row of a docstring's table: names of modules, folders or definitions, and what they are.
ROW = re.compile(r" {0,4}(\w+/?(?:, \w+)*)  +\S.*")


def list_definitions(folder: Path) -> Iterator[str]:
    """Yield the names that a folder's modules define."""
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef)):
                yield node.name
            elif isinstance(node, ast.Assign):
                yield from (
                    each.id for each in node.targets if isinstance(each, ast.Name)
                )


def test_the_docstring_of_a_folder_names_what_it_has() -> None:
    for folder in (PACKAGE.joinpath(*each) for each in FOLDERS[1:]):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert text is not None
        rows = filter(None, map(ROW.fullmatch, text.splitlines()))
        named = {name for row in rows for name in row[1].rstrip("/").split(", ")}
        # Most are modules and sub-folders, whose files need not be parsed.
        if others := named - {path.stem for path in folder.iterdir()}:
            assert others <= {*list_definitions(folder)}, folder


def test_only_the_connection_guard_uses_hypercorns_private_names() -> None:
    public = {"hypercorn.trio", "hypercorn.typing", "hypercorn.config"}
    for path in MODULES:
        if path.parent.name == "connection":
            continue
        for name in list_other_imports(path):
            assert not name.startswith("hypercorn") or name in public


# Modules -> what they must not load, nor the modules of the rows before.
LIGHT = {
    # --help must be fast, and an interrupt must have an effect from the beginning.
    "trioserve, trioserve.__main__": "torch transformers quart trio msgspec",
    # torch's library is loaded beside its other imports.
    "trioserve.startup.engine_process": "torch trio msgspec numpy",
    # They take as long as its other imports together, and a model on kernels needs none.
    "trioserve.startup.engine_host": "torch transformers prometheus_client gguf "
    "trioserve.render trioserve.frontend",
    "trioserve.programs.simulate": "torch matplotlib",
    "trioserve.startup.server, trioserve.startup.supervisor": "torch quart hypercorn "
    "trioserve.server",
    # A server starts its engine before it imports its app.
    "trioserve.startup.one_process": "torch transformers quart flask werkzeug",
    # Nor does the app need torch. tests/e2e/test_engine_process.py looks at a running server.
    "trioserve.server.app": "torch PIL gguf",
}


def test_what_starts_first_imports_nothing_large() -> None:
    script = "import sys\n" + "".join(
        f"import {modules}\nprint({{*{names.split()}}} & {{*sys.modules}} or 'nothing')\n"
        for modules, names in LIGHT.items()
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["nothing"] * len(LIGHT)


def test_a_public_name_is_imported_when_it_is_used() -> None:
    assert {*trioserve.__all__} <= {*dir(trioserve)}
    for name in trioserve.__all__:
        assert getattr(trioserve, name).__name__ == name
