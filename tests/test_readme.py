"""README's programs run and its markup is sound."""

from __future__ import annotations

import ast
from pathlib import Path
import re
import subprocess
import sys

import docutils.core
import docutils.utils
import pytest

import trioserve

README = (Path(__file__).parent.parent / "README.rst").read_text()


def test_the_markup_has_no_errors() -> None:
    docutils.core.publish_doctree(
        README, settings_overrides={"halt_level": 2, "report_level": 2}
    )


def list_programs() -> list[str]:
    """Return the indented blocks that begin with an import."""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", README)
    lines = [
        "\n".join(line[4:] for line in block.splitlines()).strip() for block in blocks
    ]
    return [block for block in lines if re.match(r"(import|from) ", block)]


@pytest.mark.parametrize("program", list_programs())
def test_a_program_names_only_what_is_there(program: str) -> None:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "trioserve":
                assert node.attr in trioserve.__all__


def test_there_are_programs() -> None:
    assert len(list_programs()) == 7


def test_the_program_that_measures_a_loop_finds_who_blocks_it() -> None:
    (program,) = (each for each in list_programs() if "LoopStall" in each)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "over 5 ms: __main__.grind 1 x, longest " in done.stdout
