"""The version has one source, and a tag repeats it."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest

from trioserve import __version__

ROOT = Path(__file__).parent.parent


def test_a_tag_of_the_last_commit_is_the_version() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    done = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "--list", "v*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert set(done.stdout.split()) <= {f"v{__version__}"}


def test_a_checkout_that_is_not_installed_knows_its_version(tmp_path: Path) -> None:
    # -S leaves out site-packages.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "trioserve", "--version"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"trioserve {__version__}\n"
