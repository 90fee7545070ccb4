"""A missing extra is named, with the command that installs it."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
import re
import sys

import pytest

from trioserve.errors import MissingExtra, needing_extra

ROOT = Path(__file__).parents[3]


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(MissingExtra) as caught, needing_extra("fun", "trioserve fun"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == (
        "trioserve fun needs no_such_package, which is not installed: "
        "run pip install 'trioserve[fun]'"
    )


def test_a_broken_package_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "older_package.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra) as caught, needing_extra("fun", "--fun"):
        from older_package import newer  # type: ignore[import-not-found]  # noqa: F401
    del sys.modules["older_package"]
    message = str(caught.value)
    assert "cannot be imported (cannot import name 'newer'" in message
    assert message.endswith("run pip install 'trioserve[fun]'")


def test_a_missing_module_of_the_project_is_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError), needing_extra("fun", "--fun"):
        import trioserve.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def list_named_extras() -> set[tuple[str, str]]:
    """Return the files that name an extra, with its name."""
    text_files = [*(ROOT / "trioserve").rglob("*.py"), *(ROOT / "docs").glob("*.rst")]
    calls = r"needing_extra\(\s*\"([a-z]+)\"|'(?:trioserve|\.)\[([a-z,]+)\]'"
    return {
        (path.name, name)
        for path in text_files
        for groups in re.findall(calls, path.read_text())
        for group in groups
        for name in group.split(",")
        if name
    }


def test_extras_that_are_named_exist() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {*setup["options.extras_require"]}
    named = list_named_extras()
    assert ("traces.py", "otel") in named
    assert {(file, name) for file, name in named if name not in extras} == set()
