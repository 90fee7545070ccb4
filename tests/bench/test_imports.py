"""Scripts stand above their kit, and an import of one runs nothing."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from imports import list_imports
import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported(name: str) -> None:
    import_module(name)


def test_the_kit_imports_no_script() -> None:
    for path in BENCH.glob("kit/**/*.py"):
        for node in list_imports(path):
            names = [each.name for each in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & {*SCRIPTS}, path
