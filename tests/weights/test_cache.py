from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import shutil
from threading import Barrier

import pytest

from trioserve.errors import WeightsNotFound
from trioserve.weights.cache import build_once, cache_folder

Build = Callable[[Path], None]


@pytest.fixture
def entry(cache_home: Path) -> Path:
    return cache_folder() / "kind" / "key"


@pytest.fixture
def builds() -> list[Path]:
    """A list to which each build adds its folder."""
    return []


@pytest.fixture
def build(model_folder: Path, builds: list[Path]) -> Build:
    def build(folder: Path) -> None:
        builds.append(folder)
        shutil.copytree(model_folder, folder / "name")

    return build


def test_the_cache_is_the_users_own(cache_home: Path) -> None:
    assert cache_folder().is_relative_to(cache_home / "trioserve")


def test_an_entry_is_built_once(entry: Path, build: Build, builds: list[Path]) -> None:
    assert build_once(entry, build, "m") == build_once(entry, build, "m")
    assert len(builds) == 1
    assert (entry / "name" / "config.json").is_file()


def test_one_of_several_processes_builds_an_entry(
    entry: Path, build: Build, builds: list[Path]
) -> None:
    barrier = Barrier(8)

    def want(_: int) -> Path:
        barrier.wait()
        return build_once(entry, build, "m")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(want, range(8))) == {entry / "name"}
    assert len(builds) == 1


def test_a_build_that_fails_leaves_nothing_behind(
    entry: Path, model_folder: Path, build: Build
) -> None:
    def fail(folder: Path) -> None:
        build(folder)
        raise KeyError("half way")

    with pytest.raises(KeyError):
        build_once(entry, fail, "m")
    assert [path.name for path in entry.parent.iterdir()] == ["key.lock"]
    assert build_once(entry, build, "m") == entry / "name"


def test_the_rest_of_a_killed_build_is_removed(entry: Path, build: Build) -> None:
    left = entry.with_name("key.part") / "name"
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    build_once(entry, build, "m")
    assert (entry / "name" / "config.json").read_text() == "{}"
    assert not left.parent.exists()


def test_a_damaged_entry_is_built_again(
    entry: Path, build: Build, builds: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    weights = build_once(entry, build, "m") / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(b"")
    assert build_once(entry, build, "m") / "model.safetensors" == weights
    assert weights.stat().st_size == size
    assert len(builds) == 2
    assert "damaged" in caplog.text


def test_a_cache_that_cannot_be_written_is_reported_in_a_sentence(
    entry: Path, cache_home: Path, build: Build
) -> None:
    cache_home.write_text("a file where a folder should be")
    with pytest.raises(WeightsNotFound, match="cannot be kept in .*: "):
        build_once(entry, build, "m")


def test_a_disk_that_fills_up_is_reported_in_a_sentence(entry: Path) -> None:
    def fill(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(WeightsNotFound, match="No space left on device$"):
        build_once(entry, fill, "m")
