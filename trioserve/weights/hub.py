"""Fetches models from the Hugging Face hub, or from the cache that its tools share."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import WeightsNotFound
from ..observe.progress import show_progress
from .folder import MODEL_FILES, check_description, check_folder

# The large files of a model.
_WEIGHTS = ("*.safetensors", "*_Dense/pytorch_model.bin")

# The same weights in the formats of other programs.
_DUPLICATES = ("consolidated*", "original/*", "onnx/*", "openvino/*")


def resolve_hub_description(source: str) -> Path:
    """Download a hub repository without its weights; otherwise as resolve_hub."""
    folder = _fetch(source, [name for name in MODEL_FILES if name not in _WEIGHTS])
    check_description(folder, source)
    return folder


def resolve_hub(source: str) -> Path:
    """Download the missing files of a hub repository; return its folder in the cache.

    HF_HUB_OFFLINE, HF_HOME, HF_TOKEN and similar variables work as in other programs.

    Args:
      source: org/name, or the bare name of an old repository such as gpt2.

    Raises:
      WeightsNotFound: the repository does not exist, cannot be reached, or has no
        model.
      WeightsBroken: the cached copy is damaged.
    """
    with show_progress(f"fetching {source}", _name_cache(source)):
        folder = _fetch(source, list(MODEL_FILES))
    check_folder(folder, source)
    return folder


def _name_cache(source: str) -> Path:
    """Return the folder of a repository in the cache; it may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{source.replace('/', '--')}"


def _fetch(source: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            source, allow_patterns=patterns, ignore_patterns=list(_DUPLICATES)
        )
    # The client also raises errors of its HTTP client, and of the disk.
    except Exception as error:
        raise WeightsNotFound(source, _explain(error)) from error
    return Path(folder)


def _explain(error: Exception) -> str:
    from huggingface_hub import errors as hub

    match error:
        case hub.HFValidationError():
            return "there is no such file or folder, and it is not a hub id (org/name)"
        # Invariant: a gated repository's error is also a RepositoryNotFoundError.
        case hub.GatedRepoError():
            return "accept the model's terms on the hub, and run `hf auth login`"
        case hub.RepositoryNotFoundError():
            return "there is no local folder or public model on the hub with this name"
        case hub.LocalEntryNotFoundError() | hub.OfflineModeIsEnabled():
            where = "it is neither a local folder nor in the Hugging Face cache"
            return f"{where}, and {_explain_absence()}"
        case _:
            reason = " ".join(str(error).split()) or type(error).__name__
            return f"fetching it from the hub failed: {reason}"


def _explain_absence() -> str:
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        return (
            "the hub is out of reach; check the network, or name a model's folder "
            "(`trioserve models` lists cached ones)"
        )
    # Either variable keeps the client offline. The client reads them at its import.
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    name = next((name for name in names if os.environ.get(name)), names[0])
    return f"{name} is set, so the hub is not contacted"
