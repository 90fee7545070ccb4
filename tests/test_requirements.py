"""`pip install -e '.[test]'` is enough to import the package and to collect its tests.

A machine with a GPU needs less for the tests marked gpu: conftest.py leaves out the others.

Imports are read, not run: the machine that runs this may have more packages than that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
import configparser
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
import re
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
import pytest

ROOT = Path(__file__).parent.parent
# Modules that hold or launch kernels for GPUs, and are imported where one is used.
_PARTS = ("adapters", "decode_check", "decoder", "expert_products", "latents", "layer")
_PARTS += ("low_bits", "mixers", "networks", "take_network", "weights")
_KERNELS = ("activate", "attend", "attend_latents", "choose_plain", "convolve")
_KERNELS += ("draw", "follow", "grouped", "low_rank", "multiply", "norm")
_KERNELS += ("pair_changes", "penalize", "read_tile", "recur", "rotate")
_KERNELS += ("rotate_latents", "round_inputs", "route", "spans", "take_in")
_DOORS = ("adapted_pairs", "adapters", "decodes", "experts", "measure_sizes", "paged")
_DOORS += ("paged_latents", "products")
_DOORS += ("sampling", "states", "steps")
NEED_TRITON = {
    "trioserve/model/sampling/triton_operators.py",
    *(f"trioserve/model/runtimes/fused/{part}.py" for part in _PARTS),
    *(f"trioserve/kernels/triton/{name}.py" for name in _KERNELS + _DOORS),
}


# What a machine with a GPU has besides the package.
FOR_GPU = ("pytest", "pytest-trio", "pytest-xdist", "hypothesis", "triton")


def list_installed(*wanted: tuple[str, str]) -> set[str]:
    """Return the names of distributions that come with some, and with their extras."""
    found: set[tuple[str, str]] = set()
    waiting = [("trioserve", ""), *wanted]
    while waiting:
        name, extra = each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                key = canonicalize_name(needed.name)
                waiting += [(key, more) for more in ("", *needed.extras)]
    return {name for name, _ in found}


def list_importable(*wanted: tuple[str, str]) -> set[str]:
    """Return the names of the packages that may be imported."""
    installed = list_installed(*wanted)
    names = {
        name
        for name, distributions in packages_distributions().items()
        if any(canonicalize_name(each) in installed for each in distributions)
    }
    return names | set(sys.stdlib_module_names)


def list_executed(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that an import runs, without those for types only."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(
            statement.test
        ):
            continue
        yield statement
        for name in ("body", "orelse", "handlers", "finalbody"):
            for inner in getattr(statement, name, ()):
                nested = inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                yield from list_executed(nested)


def list_names(path: Path, statement: ast.stmt) -> Iterator[tuple[Path | None, str]]:
    """Yield (folder, dotted name) of each import; a folder for relative ones only."""
    if isinstance(statement, ast.Import):
        yield from ((None, alias.name) for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        folder = path.parents[statement.level - 1] if statement.level else None
        for alias in statement.names:
            yield folder, ".".join(filter(None, (statement.module, alias.name)))


FOLDERS = ("trioserve", "bench", "tests")
PATHS = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
# Name without the suffix -> path; a package has its `__init__` there.
NAMED = {str(path.with_suffix("")): path for path in PATHS}

# Folders whose modules are imported by name.
SETTINGS = configparser.ConfigParser(interpolation=None)
SETTINGS.read(ROOT / "setup.cfg")
PYTHON_PATH = SETTINGS["tool:pytest"]["pythonpath"].split()


@cache
def find_files(folder: Path | None, name: str) -> tuple[Path, ...]:
    """Return the files of ours that an import runs; none for other packages."""
    roots = [folder] if folder else [ROOT, *(ROOT / each for each in PYTHON_PATH)]
    files = []
    for place in map(str, roots):
        for part in ("", *name.split(".")):
            place += part and f"/{part}"
            files += [NAMED.get(place), NAMED.get(f"{place}/__init__")]
    return tuple(filter(None, files))


def find_skipped(statement: ast.stmt) -> str | None:
    """Return the package without which a test file ends here."""
    call = getattr(statement, "value", None)
    called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    if called == "require_triton":
        return "triton"
    if isinstance(call, ast.Call) and called == "pytest.importorskip":
        return str(ast.literal_eval(call.args[0])).split(".")[0]
    return None


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a file.

    Attributes:
      files: ours that it runs
      package: of others, that it needs
      skipped: packages without which a test file has ended before
    """

    files: tuple[Path, ...]
    package: str | None
    skipped: frozenset[str]


# Functions, and other statements at the beginning of a line.
TOP = re.compile(r"\n(?=[^\s#)\]}])")
MATTERS = re.compile(r"\bimport|require_triton")


def parse_top(text: str) -> Iterator[ast.stmt]:
    """Yield the statements of a module that may import anything, and some others.

    Parsing all of the text would take five times as long.
    """
    for part in TOP.split(text):
        if MATTERS.search(part) and not part.startswith(("def ", "async def ")):
            # Lines of a docstring need not be Python.
            with suppress(SyntaxError):
                yield from ast.parse(part).body


def read_imports(path: Path, body: Iterable[ast.stmt]) -> Iterator[Import]:
    skipped: frozenset[str] = frozenset()
    for statement in list_executed(body):
        if package := find_skipped(statement):
            skipped |= {package}
        for folder, name in list_names(path, statement):
            files = find_files(folder, name)
            package = None if files or folder else name.split(".")[0]
            yield Import(files, package, skipped)


def list_imports(path: Path, known: set[str]) -> list[Import]:
    text = path.read_text()
    imports = list(read_imports(path, parse_top(text)))
    if any(each.package and each.package not in known for each in imports):
        # A program in a text may look like statements of the file.
        imports = list(read_imports(path, ast.parse(text).body))
    return imports


@pytest.fixture(scope="module")
def imports() -> dict[Path, list[Import]]:
    known = list_importable(("trioserve", "test"))
    return {path: list_imports(path, known) for path in PATHS}


@pytest.fixture(scope="module")
def missing(imports: dict[Path, list[Import]]) -> dict[str, set[str]]:
    """Return the packages that README does not install, for each file that needs any."""
    return find_missing(imports, list_importable(("trioserve", "test")))


def find_missing(
    imports: dict[Path, list[Import]], importable: set[str]
) -> dict[str, set[str]]:
    """Return the packages that may not be imported, for each file that needs any."""
    found: dict[Path, set[str]] = {path: set() for path in PATHS}
    is_changed = True
    # A file needs what the files need that it imports. They may import each other.
    while is_changed:
        is_changed = False
        for path, its_imports in imports.items():
            before = len(found[path])
            for each in its_imports:
                needed = {each.package} if each.package else set()
                needed -= importable
                needed.update(*(found[file] for file in each.files))
                found[path] |= needed - each.skipped
            is_changed |= len(found[path]) > before
    return {
        str(path.relative_to(ROOT)): packages
        for path, packages in found.items()
        if packages
    }


def test_modules_import_with_what_readme_installs(missing: dict[str, set[str]]) -> None:
    modules = {name: missing[name] for name in missing if name.startswith("trioserve/")}
    assert modules == dict.fromkeys(NEED_TRITON, {"triton"})


def test_test_files_collect_with_what_readme_installs(
    missing: dict[str, set[str]],
) -> None:
    pattern = re.compile(r"tests/(.*/)?(test_.*|conftest)\.py")
    assert [name for name in missing if pattern.fullmatch(name)] == []


def test_tests_for_gpus_collect_with_few_packages(
    imports: dict[Path, list[Import]],
) -> None:
    missing = find_missing(imports, list_importable(*((each, "") for each in FOR_GPU)))
    marked = {
        path.relative_to(ROOT)
        for path in PATHS
        if path.name.startswith("test_") and "pytest.mark.gpu" in path.read_text()
    }
    above = {parent / "conftest.py" for path in marked for parent in path.parents}
    assert len(marked) >= 8
    assert [name for name in missing if Path(name) in marked | above] == []
