"""A fingerprint changes if the same request may get another answer."""

from __future__ import annotations

from pathlib import Path

from trioserve.startup.loaded import fingerprint_model


def test_files_numbers_and_kernels_change_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"12")

    def fingerprint(dtype: str, kernels: str) -> str:
        return fingerprint_model(tmp_path, dtype, kernels)

    first = fingerprint("float32", "native avx2")
    assert fingerprint("float32", "native avx2") == first
    others = {
        fingerprint("bfloat16", "native avx2"),
        fingerprint("float32", "native avx2 int8"),
    }
    (tmp_path / "model.safetensors").write_bytes(b"123")
    others.add(fingerprint("float32", "native avx2"))
    assert len(others | {first}) == 4
