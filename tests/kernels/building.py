"""What tests compile, kept in the user's cache by a hash of all that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

    def compile_to(output: Path) -> None:
        command = ["g++", *flags, "-pthread", f"-I{NATIVE}", "-o", output, *sources]
        # The library of a sanitizer would make the compiler slow, too.
        subprocess.run(command, check=True, env={**os.environ, "LD_PRELOAD": ""})

    files = {*sources, *sources[0].parent.glob("*.h"), *NATIVE.iterdir()}
    return keep((version.stdout, *(each.encode() for each in flags)), files, compile_to)


def keep(
    facts: Iterable[bytes], files: Iterable[Path], make: Callable[[Path], None]
) -> Path:
    """Make a file, or find it in the cache.

    Args:
      facts, files: all that it depends on.
      make: writes the file.
    """
    content = blake2b(b" ".join(facts), digest_size=12)
    for path in sorted(files):
        if path.is_file():
            content.update(path.name.encode() + path.read_bytes())
    folder = CACHE / "trioserve-tests"
    made = folder / content.hexdigest()
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as parts:
            output = Path(parts) / "made"
            make(output)
            # Two processes may make the same at once.
            output.replace(made)
    return made
