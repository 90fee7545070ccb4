"""The threads of the kernels do each piece of work once, and order what they write."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess

import pytest

from .conftest import NATIVE


def test_pieces_are_done_once_without_races(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "stress"
    sources = [Path(__file__).parent / "pool_stress.cpp", NATIVE / "pool.cpp"]
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{NATIVE}"]
    subprocess.run(["g++", *flags, "-o", program, *sources], check=True)
    # Randomized addresses may collide with the sanitizer's own on some kernels.
    done = subprocess.run(
        ["setarch", "-R", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
