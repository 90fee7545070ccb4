"""Checks that a folder contains a complete model, without loading a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import json
from pathlib import Path

from ..errors import WeightsBroken, WeightsNotFound

# The two names that transformers looks for, one file or several.
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# The files of a model. Others (README, code, pickles, weights of other frameworks) are
# not fetched.
MODEL_FILES = (
    *("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"),
    # Settings of Stanford's ColBERT, and Dense layers of older folders. Of the latter
    # only tensors are unpickled.
    *("artifact.metadata", "*_Dense/pytorch_model.bin"),
)


def check_folder(folder: Path, source: str) -> None:
    """Check that transformers will find config.json and complete weights.

    A tokenizer is not checked; callers that need one check for it.

    Args:
      folder: must exist.
      source: the user's name of the model, for errors.

    Raises:
      WeightsNotFound: config.json or the weights are missing.
      WeightsBroken: a file is corrupt, truncated or not readable.
    """
    check_description(folder, source)
    with _naming_files(folder, source):
        for shard in _list_shards(folder, source):
            _check_shard(shard, source)


def check_description(folder: Path, source: str) -> None:
    """Check config.json as check_folder does; the weights may be missing."""
    with _naming_files(folder, source):
        _check_config(folder, source)


@contextmanager
def _naming_files(folder: Path, source: str) -> Iterator[None]:
    """Turn errors of the disk into ones that name the model and the file."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename or folder).name
        raise WeightsBroken(source, f"{name}: {error.strerror or error}") from error


def _check_config(folder: Path, source: str) -> None:
    if (folder / "config.json").is_file():
        _read_object(folder / "config.json", source)
        return
    ggufs = sorted(folder.glob("*.gguf"))
    hint = f"; did you mean {ggufs[0]}?" if ggufs else ""
    hint = hint or "; name a folder in Hugging Face layout, or a .gguf file"
    raise WeightsNotFound(source, f"the folder has no config.json{hint}")


def _list_shards(folder: Path, source: str) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).is_file():
        return _read_index(folder / INDEX_FILE, source)
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        # A pickle can run any code when it is loaded.
        reason = f"{pickles[0].name} is a pickle, which is never loaded"
        raise WeightsNotFound(source, f"{reason}; convert it to safetensors")
    reason = f"the folder has neither {SINGLE_FILE} nor {INDEX_FILE}"
    raise WeightsNotFound(source, reason)


def _read_index(index: Path, source: str) -> list[Path]:
    weight_map = _read_object(index, source).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsBroken(source, f"{index.name} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise WeightsBroken(
                source, f"{index.name} names {name!r}, outside the folder"
            )
        if not (index.parent / name).is_file():
            raise WeightsBroken(source, f"{name}, which {index.name} names, is missing")
    return [index.parent / name for name in names]


def _check_shard(shard: Path, source: str) -> None:
    from safetensors import SafetensorError, safe_open

    with shard.open("rb") as file:
        if file.read(23) == b"version https://git-lfs":
            reason = (
                f"{shard.name} is a Git LFS pointer; `git lfs pull` fetches the file"
            )
            raise WeightsBroken(source, reason)
    try:
        # Opening reads the header, and fails if its tensors do not fill the file
        # exactly. The tensors themselves are not read.
        with safe_open(shard, framework="numpy"):
            pass
    except SafetensorError as error:
        reason = f"{shard.name} is truncated or corrupt ({error})"
        raise WeightsBroken(source, reason) from error


def _read_object(path: Path, source: str) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsBroken(source, f"{path.name} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise WeightsBroken(source, f"{path.name} is not a JSON object")
    return value
