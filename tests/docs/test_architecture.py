"""docs/architecture.rst names only files and functions that exist, and all rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
import re

from imports import list_imports

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trioserve"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()

FILES = {path.name for path in PACKAGE.rglob("*.*")}
QUOTED = {*re.findall(r"``([^`]+)``", PAGE)}
FILE = re.compile(r"([\w./-]+\.(?:py|rst|cfg|html|cpp|h|md))(?::([\w.]+))?")
FOLDER = re.compile(r"[\w.-]+(/[\w-]+)*/?(?<=/)|[\w-]+(/[\w-]+)+")
BARE_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")

# Names of others.
FOREIGN = {
    "AttentionInterface",
    "CapacityLimiter",
    "None",
    "PYTHONPATH",
    "SO_REUSEPORT",
}
FOREIGN |= {"mutmut", "trio", "varlen"}


def find(path: str) -> Path:
    """Return the file or folder: in the package, unless its path begins elsewhere."""
    is_outside = path.split("/")[0] in (".ci", "bench", "docs", "tests", "trioserve")
    return (ROOT if is_outside or path == "setup.cfg" else PACKAGE) / path


@cache
def list_definitions(path: Path) -> frozenset[str]:
    """Return the names of a module's functions, classes and methods."""
    return frozenset(_walk(ast.parse(path.read_text()), ""))


def _walk(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")


# A definition, an argument, or the target of an assignment or annotation.
DEFINED = re.compile(r"\b(?:def|class) (\w+)|\b(\w+)(?=:| =|=)")


def list_names() -> Iterator[str]:
    """Yield the names that our code defines: modules, classes, functions, fields, values."""
    folders = (PACKAGE, ROOT / "bench", ROOT / "tests")
    for path in (each for folder in folders for each in folder.rglob("*.py")):
        yield from path.relative_to(ROOT).with_suffix("").parts
        for found in DEFINED.findall(path.read_text()):
            yield from found


def test_files_and_functions_exist() -> None:
    for name in QUOTED:
        if matched := FILE.fullmatch(name):
            path, definition = find(matched[1]), matched[2]
            assert path.is_file() or matched[1] in FILES, name
            assert definition is None or definition in list_definitions(path), name


def test_folders_exist() -> None:
    for name in QUOTED:
        if FOLDER.fullmatch(name):
            assert find(name).is_dir() or [*PACKAGE.rglob(name)], name


def test_bare_names_exist() -> None:
    names = {*list_names(), *FOREIGN}
    for name in QUOTED:
        if BARE_NAME.fullmatch(name) and not FILE.fullmatch(name):
            assert names >= {*name.split(".")}, name


def read_section(title: str) -> str:
    found = re.search(
        rf"\n{re.escape(title)}\n-+\n(.+?)(?=\n\n\n.+\n-+\n|\Z)", PAGE, re.S
    )
    assert found is not None
    return found[1]


def list_rooms() -> set[str]:
    files = {path.stem for path in PACKAGE.glob("*.py")}
    return files | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_each_room_is_drawn_and_described() -> None:
    section = read_section("The rooms")
    drawn = {word for line in re.findall(r"\|(.+)\|", section) for word in line.split()}
    described = set(re.findall(r"   \* - ``(\w+)``\n", section))
    assert described == list_rooms()
    assert described <= drawn


def test_the_chat_takes_20_steps_at_most() -> None:
    steps = re.findall(r"   \* - (\d+)\n", read_section("One streamed chat"))
    assert [int(step) for step in steps] == list(range(1, len(steps) + 1))
    assert len(steps) <= 20


def list_floors() -> list[set[str]]:
    """Return the rooms between the drawing's lines, from the top."""
    drawing = re.search(r"::\n\n((?:    .+\n)+)", read_section("The rooms"))
    assert drawing is not None
    floors = re.split(r"    \+.+\n", drawing[1])
    return [
        {*re.findall(r"\w+", re.sub(r"\|[^|\n]+\n", "\n", each))} for each in floors
    ]


def list_imported_rooms(path: Path) -> Iterator[str]:
    depth = len(path.relative_to(PACKAGE).parts)
    for node in list_imports(path):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [each.name for each in node.names]
            yield from (name.split(".")[0] for name in names)


def test_no_import_points_upwards_in_the_drawing() -> None:
    floors = {
        room: number for number, each in enumerate(list_floors()) for room in each
    }
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for imported in list_imported_rooms(path):
            if imported in floors:
                assert floors[imported] >= floors[room], f"{room} imports {imported}"
