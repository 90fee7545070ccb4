"""The code has the files that docs/architecture.rst names for a change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trioserve"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()


def read_recipe(title: str) -> set[str]:
    """Return the files in the list of a section."""
    _, _, section = PAGE.partition(f"\n{title}\n~~~")
    items = re.findall(
        r"^\* ``([a-z_/0-9]+\.py)``", section.partition("\n~~~")[0], re.M
    )
    assert items, f"{title} has a list of files"
    return set(items)


def find_uses(name: str) -> Iterator[str]:
    """Yield the files that use a name, in code or as a whole string."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if name in text and any(
            name
            in (
                getattr(node, "id", None),
                getattr(node, "attr", None),
                getattr(node, "arg", None),
                getattr(node, "value", None),
            )
            for node in ast.walk(ast.parse(text))
        ):
            yield path.relative_to(PACKAGE).as_posix()


def find_sampling_field() -> set[str]:
    """Return the files of min_p, which has all that a field can have."""
    # A flag, and advice for clients of another API, are a choice for each field.
    others = {"programs/chat/config.py", "api/anthropic/body.py"}
    kernels = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "kernels" / "triton").glob("*.py")
        if "the logarithm of min-p" in path.read_text()
    }
    return {*find_uses("min_p"), *kernels} - others


def find_vision_family() -> set[str]:
    """Return the files of SmolVLM, a family that takes images."""
    # Its processor of images is tiny, too, which is for tests alone.
    return {*find_uses("smolvlm")} - {"testing/processors.py"}


def find_capability() -> set[str]:
    """Return the files of a fact about a decoder that few models have."""
    return {*find_uses("logit_softcap")}


# The title of a section, and the files by the code. No change needs more files.
RECIPES: dict[str, tuple[Callable[[], set[str]], int]] = {
    "A new sampling field": (find_sampling_field, 6),
    "A new capability of decoders": (find_capability, 5),
    "A new model family": (find_vision_family, 2),
}


@pytest.mark.parametrize(("title", "recipe"), RECIPES.items())
def test_a_recipe_names_the_files_of_a_change(
    title: str, recipe: tuple[Callable[[], set[str]], int]
) -> None:
    find_files, most = recipe
    assert read_recipe(title) == find_files()
    assert len(read_recipe(title)) <= most
