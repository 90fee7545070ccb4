"""The source distribution has the files that its pages work with, and no keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools.command.egg_info import FileList

ROOT = Path(__file__).parents[2]
TEMPLATE = (ROOT / "MANIFEST.in").read_text()


def list_files() -> set[str]:
    """Return the files below the working directory that MANIFEST.in chooses."""
    files = FileList()
    for line in TEMPLATE.splitlines():
        if line and not line.startswith("#"):
            files.process_template_line(line)
    return {*files.files}


def test_the_sdist_has_the_pages_and_what_they_deploy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    paths = [path for path in Path("deploy").glob("*") if path.is_file()]
    paths += [*Path("deploy/grafana").glob("*"), *Path("docs").glob("*.rst")]
    paths += [*Path("docs/_static").glob("*"), Path(".dockerignore")]
    assert len(paths) > 30
    assert {*map(str, paths)} <= list_files()


def test_the_sdist_has_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("deploy/secrets/keys.txt", "deploy/tls/privkey.pem", "deploy/x.toml"):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list_files() == {"deploy/x.toml"}
