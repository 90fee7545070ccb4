from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trioserve.errors import WeightsBroken, WeightsNotFound
from trioserve.weights import resolve_weights


@pytest.fixture
def sharded_folder(model_folder: Path) -> Path:
    """The same, its weights in two files that an index names."""
    (model_folder / "model.safetensors").unlink()
    names = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    for name in names:
        save_file({name: np.ones(10)}, model_folder / name)
    write_index(model_folder, {name: name for name in names})
    return model_folder


def write_index(folder: Path, weight_map: object) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_weights_may_be_sharded(sharded_folder: Path) -> None:
    assert resolve_weights(str(sharded_folder)).folder == sharded_folder


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
WEIGHTS = "model.safetensors"


def dangle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("nowhere")


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (
            lambda folder: (folder / "config.json").unlink(),
            WeightsNotFound,
            "the folder has no config.json; name a",
        ),
        # transformers does not look for this name.
        (
            lambda folder: (folder / WEIGHTS).rename(
                folder / "adapter_model.safetensors"
            ),
            WeightsNotFound,
            "neither model.safetensors nor",
        ),
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
            WeightsNotFound,
            "pickle, which is never loaded",
        ),
        (
            lambda folder: (folder / WEIGHTS).write_text(POINTER),
            WeightsBroken,
            "git lfs pull",
        ),
        (dangle, WeightsNotFound, "neither model.safetensors nor"),
    ],
)
def test_a_folder_without_readable_files_is_refused(
    model_folder: Path,
    change: Callable[[Path], object],
    error: type[Exception],
    reason: str,
) -> None:
    change(model_folder)
    with pytest.raises(error, match=reason):
        resolve_weights(str(model_folder))


def test_a_folder_around_a_gguf_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(WeightsNotFound, match=f"did you mean {tmp_path}/m.gguf"):
        resolve_weights(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\x00"])
def test_a_configuration_that_is_no_json_object_is_refused(
    model_folder: Path, text: str
) -> None:
    (model_folder / "config.json").write_text(text)
    with pytest.raises(WeightsBroken, match="config.json is not"):
        resolve_weights(str(model_folder))


@pytest.mark.parametrize("num_bytes", [0, 7, 8, 9, 100, 4000, -1])
def test_truncated_weights_are_refused(model_folder: Path, num_bytes: int) -> None:
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:num_bytes])
    with pytest.raises(
        WeightsBroken, match="model.safetensors is truncated or corrupt"
    ):
        resolve_weights(str(model_folder))


def test_every_shard_is_checked(sharded_folder: Path) -> None:
    shard = sharded_folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes() + b"x")
    with pytest.raises(WeightsBroken, match=f"{shard.name} is truncated or corrupt"):
        resolve_weights(str(sharded_folder))


def test_a_missing_shard_is_named(sharded_folder: Path) -> None:
    (sharded_folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(WeightsBroken, match="model-00001-of-00002.safetensors, which"):
        resolve_weights(str(sharded_folder))


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_weight_map_is_refused(
    sharded_folder: Path, weight_map: object
) -> None:
    write_index(sharded_folder, weight_map)
    with pytest.raises(WeightsBroken, match="has no weight_map"):
        resolve_weights(str(sharded_folder))


def test_an_index_cannot_name_files_outside_the_folder(sharded_folder: Path) -> None:
    write_index(sharded_folder, {"w": "../model.safetensors"})
    with pytest.raises(WeightsBroken, match="outside the folder"):
        resolve_weights(str(sharded_folder))
