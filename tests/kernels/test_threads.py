"""Threads are as many as this process may run at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trioserve.kernels import threads
from trioserve.kernels.threads import count_threads


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def put_into(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let this process be in a cgroup."""
    file = tmp_path / "self"
    file.write_text(f"3:cpu:/of/version/1\n0::{path}\n")
    monkeypatch.setattr(threads, "_OWN_GROUP", file)
    group = tmp_path / "cgroup" / path.lstrip("/")
    group.mkdir(parents=True, exist_ok=True)
    return group


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000", 4),
        ("200000 100000", 2),
        # Three threads would use two cores and a half in turns.
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("900000 100000", 4),
    ],
)
def test_a_quota_counts(
    limit: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = put_into("/pod/container", monkeypatch, tmp_path)
    (group / "cpu.max").write_text(f"{limit}\n")
    assert count_threads(tmp_path / "cgroup") == expected


def test_the_quota_of_a_parent_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = put_into("/pod/container", monkeypatch, tmp_path)
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("100000 50000\n")
    assert count_threads(tmp_path / "cgroup") == 2


def test_cores_count_without_cgroups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(threads, "_OWN_GROUP", tmp_path / "missing")
    assert count_threads(tmp_path / "cgroup") == 4
