"""The threads of the kernels do each piece of work once, and order their writes."""

from __future__ import annotations

from pathlib import Path
import subprocess

from .building import NATIVE, build


def test_pieces_are_done_once_without_races() -> None:
    sources = [Path(__file__).parent / "pool_stress.cpp", NATIVE / "pool.cpp"]
    program = build(["-std=c++17", "-O1", "-g", "-fsanitize=thread"], sources)
    # Randomized addresses may collide with the sanitizer's own on some kernels.
    done = subprocess.run(
        ["setarch", "-R", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
