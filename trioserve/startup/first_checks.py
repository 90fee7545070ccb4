"""Mistakes that are found in milliseconds, without the imports of torch and transformers.

These take seconds. What cannot be read here without doubt is left to the checks behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from importlib.metadata import version
from importlib.util import find_spec
import json
from pathlib import Path
import runpy
from typing import Any

from ..config import EngineConfig, ModelConfig
from ..errors import InvalidConfig, UnsupportedModel
from ..model.loading.files.positions import choose_max_model_len
from ..types.architecture import guess_task
from ..weights import GgufHeader, find_local

# The files that name types of models, and architectures of GGUF files, in double quotes.
_NAMES_OF_TYPES = (
    ("transformers", "models/auto/auto_mappings.py"),
    ("transformers", "models/auto/configuration_auto.py"),
)
_NAMES_IN_GGUF = (
    ("transformers", "modeling_gguf_pytorch_utils.py"),
    ("transformers", "integrations/ggml.py"),
    ("trioserve", "weights/gguf_families/families.py"),
)


def check_first(config: EngineConfig) -> None:
    """Refuse a device, an adapter or a model that is not there, and a model that cannot run.

    Raises:
      StartupError
    """
    check_device(config.model)
    for name, path in config.model.list_adapters():
        if not Path(path).exists():
            raise InvalidConfig("adapter", f"{name}={path}: there is no such path")
    found = find_local(config.model.model)
    if isinstance(found, Path):
        check_description(found, config)
    elif found is not None:
        check_header(found, config)


def check_device(config: ModelConfig) -> None:
    """Refuse a GPU if torch cannot use any, and weights for GPUs without one.

    Raises:
      InvalidConfig
    """
    obstacle = None
    if config.device != "cpu":
        obstacle = find_obstacle(_find_package("torch"))
    if obstacle is not None and config.device != "auto":
        reason = f"{config.device!r} cannot be used: {obstacle}, or write --device cpu"
        raise InvalidConfig("device", reason)
    if config.quantization == "fp8" and (obstacle or config.device == "cpu"):
        reason = "fp8 is for GPUs, and the device is cpu; int8 runs there"
        raise InvalidConfig("quantization", reason)


def find_obstacle(torch: Path | None, driver: str = "libcuda.so.1") -> str | None:
    """Return why torch can use no GPU; None if it may.

    Args:
      torch: the folder of the package.
      driver: the library that NVIDIA's driver brings.
    """
    if torch is None or not (torch / "version.py").is_file():
        return None
    build = runpy.run_path(str(torch / "version.py"))
    if build.get("hip"):
        return None
    if not build.get("cuda"):
        return "torch is installed without CUDA; install torch for CUDA"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return f"this machine has no driver of NVIDIA ({driver}); install the driver"
    return None


def check_description(folder: Path, config: EngineConfig) -> None:
    """Refuse a model by its config.json.

    Raises:
      UnsupportedModel: transformers does not know its type.
      InvalidConfig: --max-model-len is more than the model's own.
    """
    try:
        described = json.loads((folder / "config.json").read_bytes())
        architecture = str((described.get("architectures") or [""])[0])
        fields = {**described, **(described.get("text_config") or {})}
    # A broken file, which is refused where all of it is read.
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    model_type = described.get("model_type")
    if isinstance(model_type, str) and not may_know(model_type):
        reason = f"transformers {version('transformers')} does not know this model_type"
        raise UnsupportedModel(model_type, reason)
    if guess_task(architecture, None) == "generate":
        _check_length(fields, config.model.max_model_len)


def check_header(header: GgufHeader, config: EngineConfig) -> None:
    """Refuse a model by the header of its GGUF file; raises as check_description."""
    architecture = header.file.architecture
    if not may_know(architecture, _NAMES_IN_GGUF):
        reason = f"transformers {version('transformers')} cannot read its GGUF files"
        raise UnsupportedModel(architecture, reason)
    scaling = header.get_text(f"{architecture}.rope.scaling.type") or "none"
    length = header.get_number(f"{architecture}.context_length")
    rope = {} if scaling == "none" else {"rope_type": scaling}
    fields = {"max_position_embeddings": length, "rope_parameters": rope}
    if config.pooling.task in ("auto", "generate"):
        _check_length(fields, config.model.max_model_len)


def may_know(name: str, files: Sequence[tuple[str, str]] = _NAMES_OF_TYPES) -> bool:
    """Return whether the files may have a name; False is certain.

    Args:
      files: the package of each, and the path in it.
    """
    for package, path in files:
        folder = _find_package(package)
        try:
            if folder is None or f'"{name}"' in (folder / path).read_text("utf-8"):
                return True
        except OSError:
            return True
    return False


def _check_length(fields: dict[str, Any], wanted: int | None) -> None:
    """Check --max-model-len, if no scaling of rotary embeddings stretches the length."""
    limit = fields.get("max_position_embeddings")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    is_plain = isinstance(rope, dict) and rope.get("rope_type", "default") == "default"
    is_plain = is_plain and "type" not in rope
    if wanted is not None and is_plain and isinstance(limit, int) and limit > 1:
        choose_max_model_len(limit, wanted)


def _find_package(name: str) -> Path | None:
    """Return the folder of a package, which stays unimported."""
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) if places else None
