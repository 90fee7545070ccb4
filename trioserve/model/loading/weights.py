"""Build a model and read its weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ...config import ModelConfig
from ...errors import WeightsBroken, shorten_message
from .config_file import find_weight_formats, read_config
from .dequantise import WeightFormat, open_tensors
from .quantisation import (
    Dequantisation,
    forget_quantisation,
    plan_dequantisation,
)

logger = logging.getLogger(__name__)


def read_weights(
    build: Any,
    folder: Path,
    config: ModelConfig,
    *,
    attention: str | dict[str, str] | None,
    may_lack: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Build a model and read its weights.

    Args:
      build: one of transformers' AutoModel classes.
      attention: the implementation; None is the best of transformers' own.
      may_lack: beginnings of the names of weights that may be missing, because they are
        not used.

    Raises:
      WeightsBroken: a file cannot be read, or weights are missing.
    """
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    model_config = read_config(folder)
    formats = find_weight_formats(folder, config)
    if formats is not None:
        return _read_formats(
            build, folder, formats, model_config, dtype, attention, may_lack
        )
    dequantisation = plan_dequantisation(model_config, dtype)
    if dequantisation is not None:
        logger.info(
            "weights quantised by %s are dequantised to %s as they are read, and take as "
            "much memory as if they had never been quantised",
            dequantisation.method,
            str(dequantisation.dtype).removeprefix("torch."),
        )
    try:
        # With output_loading_info it returns a pair, though its type says otherwise.
        loaded = build.from_pretrained(
            folder,
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
            **_choose_numbers(dequantisation, dtype),
        )
    except Exception as error:
        # Half a dozen libraries read weights, each with errors of its own. They all mean
        # that this folder cannot be loaded.
        raise WeightsBroken(str(folder), shorten_message(error)) from error
    model: PreTrainedModel
    model, report = loaded
    _check_report(report, folder, may_lack)
    if dequantisation is not None:
        dequantisation.finish(model)
    return model


def _choose_numbers(
    dequantisation: Dequantisation | None, dtype: torch.dtype | None
) -> dict[str, object]:
    """Return the arguments of from_pretrained for the type of the weights."""
    if dequantisation is None:
        return {"dtype": dtype or "auto"}
    return {"dtype": dequantisation.dtype, "config": dequantisation.config}


def _read_formats(
    build: Any,
    folder: Path,
    formats: tuple[WeightFormat, ...],
    model_config: PreTrainedConfig,
    dtype: torch.dtype | None,
    attention: str | dict[str, str] | None,
    may_lack: tuple[str, ...],
) -> PreTrainedModel:
    """Build a model and dequantise its weights, one by one, as they are read."""
    dtype = forget_quantisation(model_config, dtype)
    logger.info(
        "quantised weights are dequantised to %s as they are read",
        str(dtype).removeprefix("torch."),
    )
    model: PreTrainedModel
    try:
        with open_tensors(folder, formats, dtype) as tensors:
            model, report = _find_class(build, model_config).from_pretrained(
                None,
                config=model_config,
                state_dict=tensors,
                attn_implementation=attention,
                output_loading_info=True,
                dtype=dtype,
            )
    except Exception as error:
        raise WeightsBroken(str(folder), shorten_message(error)) from error
    _check_report(report, folder, may_lack)
    parts = {f".{name}" for form in formats for name in form.names}
    for name in sorted(map(str, report["unexpected_keys"])):
        if name.endswith(tuple(parts)) and not name.endswith(".weight"):
            raise WeightsBroken(str(folder), f"{name} lacks the tensors beside it")
    # from_pretrained reads it from a folder, and has none here.
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _find_class(build: Any, model_config: PreTrainedConfig) -> Any:
    """Return the class of a model; transformers' AutoModel classes want a folder."""
    if isinstance(build, type) and issubclass(build, PreTrainedModel):
        return build
    with torch.device("meta"):
        return type(build.from_config(model_config))


def _check_report(
    report: Mapping[str, Any], folder: Path, may_lack: tuple[str, ...]
) -> None:
    for problem in ("missing_keys", "mismatched_keys"):
        # transformers leaves random numbers in such tensors.
        names = [
            name for name in map(str, report[problem]) if not name.startswith(may_lack)
        ]
        if names:
            raise WeightsBroken(
                str(folder),
                f"{len(names)} {problem.replace('_', ' ')}, such as {min(names)}",
            )
