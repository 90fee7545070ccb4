"""Models from the Hugging Face hub, or from the cache that its tools share."""

from __future__ import annotations

from pathlib import Path

from ..errors import WeightsNotFound
from .folder import MODEL_FILES, check_folder

# The same weights again, as other programs want them.
_DUPLICATES = ("consolidated*", "original/*", "onnx/*", "openvino/*")


def resolve_hub(source: str) -> Path:
    """Download what is missing of a hub repository; return its folder in the cache.

    HF_HUB_OFFLINE, HF_HOME, HF_TOKEN and their like mean what they mean everywhere.

    Args:
      source: org/name, or the bare name of an old repository such as gpt2.

    Raises:
      WeightsNotFound: there is no such repository, no way to it, or no model in it.
      WeightsBroken: the cached copy is damaged.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            source,
            allow_patterns=list(MODEL_FILES),
            ignore_patterns=list(_DUPLICATES),
        )
    # Besides its own errors the client raises its HTTP client's, and the disk's.
    except Exception as error:
        raise WeightsNotFound(source, _explain(error)) from error
    check_folder(Path(folder), source)
    return Path(folder)


def _explain(error: Exception) -> str:
    from huggingface_hub import errors as hub

    match error:
        case hub.HFValidationError():
            return "there is no such file or folder, and it is not a hub id (org/name)"
        # Invariant: a gated repository's error is also a RepositoryNotFoundError.
        case hub.GatedRepoError():
            return "the hub wants you to accept its terms and to `hf auth login`"
        case hub.RepositoryNotFoundError():
            return "neither a local folder nor a public model of the hub is called so"
        case hub.LocalEntryNotFoundError() | hub.OfflineModeIsEnabled():
            where = "it is neither a local folder nor in the Hugging Face cache"
            return f"{where}, and the hub is out of reach"
        case _:
            reason = " ".join(str(error).split()) or type(error).__name__
            return f"fetching it from the hub failed: {reason}"
