"""The library that is loaded is the best one that the processor runs."""

from __future__ import annotations

from collections.abc import Iterator
import ctypes
import errno
from pathlib import Path

import pytest

from trioserve.kernels import library
from trioserve.kernels.library import NoKernels, find_instruction_sets, open_library

_AVX2 = "avx2 fma f16c"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512vl avx512dq"
_BF16 = f"{_AVX512} avx512_bf16 avx512_vnni"


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
        (_BF16, ["avx512_bf16", "avx512", "avx2"]),
        (f"{_BF16} amx_bf16 amx_tile", ["avx512_bf16", "avx512", "avx2"]),
        (
            f"{_BF16} amx_bf16 amx_int8 amx_tile",
            ["amx", "avx512_bf16", "avx512", "avx2"],
        ),
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


class FakeLibrary:
    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def use_tiles(self) -> int:
        # A compiler may not know them.
        return self.path.name == "with tiles"


@pytest.mark.parametrize(
    ("answer", "file", "expected"),
    [
        (0, "with tiles", "amx"),
        (0, "without tiles", "avx512_bf16"),
        (-1, "with tiles", "avx512_bf16"),
    ],
)
def test_tiles_are_used_if_the_system_gives_them_and_the_compiler_knew_them(
    processor: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: int,
    file: str,
    expected: str,
) -> None:
    processor.write_text(f"flags : {_BF16} amx_bf16 amx_int8 amx_tile\n")
    calls = []

    class FakeSystem:
        def syscall(self, *arguments: int) -> int:
            calls.append(arguments)
            ctypes.set_errno(errno.ENOSPC)
            return answer

    monkeypatch.setattr(library, "Library", FakeLibrary)
    monkeypatch.setattr(
        library, "_find", lambda name: Path(file) if name == "avx512_bf16" else None
    )
    monkeypatch.setattr(library.ctypes, "CDLL", lambda *_, **__: FakeSystem())
    assert open_library().name == expected
    # ARCH_REQ_XCOMP_PERM of XTILEDATA.
    assert calls == [(158, 0x1023, 18)]
    refusal = "the system gives no tiles: No space left on device"
    assert (refusal in caplog.text) == (answer != 0)


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
