"""Compiled programs of tests, kept in the user's cache by a hash of all that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
import os
from pathlib import Path
import shutil
import subprocess
from tempfile import TemporaryDirectory

import pytest

import trioserve.kernels

NATIVE = Path(trioserve.kernels.__file__).parent / "native"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def build(flags: Sequence[str], sources: Sequence[Path]) -> Path:
    """Compile C++ files with the headers of the kernels; skip the test without a compiler.

    Returns:
      a file that stays; the same sources, flags and compiler are not compiled again
    """
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True)
    content = blake2b(version.stdout, digest_size=12)
    content.update(" ".join(flags).encode())
    for path in sorted({*sources, *sources[0].parent.glob("*.h"), *NATIVE.iterdir()}):
        if path.is_file():
            content.update(path.name.encode() + path.read_bytes())
    folder = CACHE / "trioserve-tests"
    built = folder / content.hexdigest()
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as parts:
            output = Path(parts) / "built"
            command = ["g++", *flags, "-pthread", f"-I{NATIVE}", "-o", output, *sources]
            # The library of a sanitizer would make the compiler slow, too.
            settings = {**os.environ, "LD_PRELOAD": ""}
            subprocess.run(command, check=True, env=settings)
            # Two processes may build the same at once.
            output.replace(built)
    return built
