"""The library that is loaded is the best one that the processor runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trioserve.kernels import library
from trioserve.kernels.library import NoKernels, find_instruction_sets, open_library

_AVX2 = "avx2 fma f16c"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512vl avx512dq"


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The file that lists the instruction sets of the processor."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(library, "_CPU_INFO", file)
    open_library.cache_clear()
    yield file
    open_library.cache_clear()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse2 avx", []),
        ("avx2 fma", []),
        (_AVX2, ["avx2"]),
        (f"{_AVX2} avx512f", ["avx2"]),
        (_AVX512, ["avx512", "avx2"]),
        (f"{_AVX512} avx512_bf16", ["avx512", "avx2"]),
        (f"{_AVX512} avx512_bf16 avx512_vnni", ["avx512_bf16", "avx512", "avx2"]),
    ],
)
def test_instruction_sets_come_from_the_processor(
    flags: str, expected: list[str], processor: Path
) -> None:
    processor.write_text(f"model name\t: any\nflags\t\t: {flags}\n")
    assert find_instruction_sets() == expected


def test_a_processor_without_vectors_has_no_kernels(processor: Path) -> None:
    processor.write_text("flags : sse2\n")
    with pytest.raises(NoKernels, match="the processor has no AVX2 with FMA"):
        open_library()


def test_an_installation_without_a_compiler_has_no_kernels(
    processor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor.write_text(f"flags : {_AVX2}\n")
    monkeypatch.setattr(library, "_find", lambda name: None)
    with pytest.raises(NoKernels, match="without a C\\+\\+ compiler"):
        open_library()


def test_the_next_library_is_loaded_if_the_best_was_not_built(
    processor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library._find("avx2") is None:
        pytest.skip("needs the library for AVX2")
    processor.write_text(f"flags : {_AVX512}\n")
    find = library._find
    monkeypatch.setattr(
        library, "_find", lambda name: find(name) if name == "avx2" else None
    )
    assert open_library().name == "avx2"


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in find_instruction_sets() if library._find(name)]
    if not names:
        pytest.skip("needs a library")
    path = library._find(names[0])
    assert path is not None
    assert library.Library(names[0], path).name == names[0]
    monkeypatch.setattr(library, "SPECS", (*library.SPECS[1:], library.SPECS[0]))
    with pytest.raises(NoKernels, match="built from other sources; install trioserve"):
        library.Library(names[0], path)


def test_a_library_without_a_function_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: object())
    with pytest.raises(NoKernels, match="built from other sources; install trioserve"):
        library.Library("avx2", tmp_path)
