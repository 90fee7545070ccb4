"""Build a model and read its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
import copy
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ...config import ModelConfig
from ...errors import InvalidConfig, WeightsBroken, shorten_message
from ..attention.probe import UnfitLayer
from .dequantise import WeightFormat, open_tensors
from .dequantise.quantisation import (
    Dequantisation,
    forget_quantisation,
    plan_dequantisation,
)
from .files.config_file import find_weight_formats, read_config
from .keeping import KeptWeights

logger = logging.getLogger(__name__)

# Replaces sliceable sources of tensors, by their names in the files.
TakeParts = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def read_weights(
    build: Any,
    folder: Path,
    config: ModelConfig,
    *,
    device: torch.device,
    attention: str | dict[str, str] | None,
    may_lack: tuple[str, ...] = (),
    take_parts: TakeParts | None = None,
    keeps: bool = False,
) -> PreTrainedModel:
    """Build a model and read its weights.

    The modules are made without memory. Files are mapped, and each tensor goes from its file
    to the device, in the type that it has there, so the host holds no second copy.

    Args:
      device: of the weights; buffers that no file has may be elsewhere.
      build: one of transformers' AutoModel classes.
      attention: the implementation; None is the best of transformers' own.
      may_lack: beginnings of the names of weights that may be missing, because they are
        not used.
      take_parts: replaces weights of the files by the parts that the model has.
      keeps: quantised weights stay as they are, in StoredLinear modules.

    Raises:
      WeightsBroken: a file cannot be read, or weights are missing.
      InvalidConfig: the weights are split, and would be dequantised unasked.
    """
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    model_config = read_config(folder)
    # transformers dequantises whole weights of some kinds, and cannot do so in parts.
    splits = take_parts is not None and config.dequantize
    formats = find_weight_formats(folder, config, keeps=keeps or splits)
    if formats is not None:
        dtype = forget_quantisation(model_config, dtype)
        if not keeps:
            logger.info(
                "quantised weights are dequantised to %s as they are read",
                str(dtype).removeprefix("torch."),
            )
        return _read_tensors(
            *(build, folder, formats, model_config, device, dtype),
            *(attention, may_lack, take_parts, keeps),
        )
    dequantisation = plan_dequantisation(model_config, dtype)
    if take_parts is not None:
        if dequantisation is not None:
            raise InvalidConfig(
                "tensor_parallel_size",
                f"weights quantised by {dequantisation.method} cannot be split without "
                "--dequantize",
            )
        if dtype is None:
            dtype = _find_own_dtype(model_config)
        return _read_tensors(
            *(build, folder, (), model_config, device, dtype),
            *(attention, may_lack, take_parts, False),
        )
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
            device_map=_map_device(device),
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


def _map_device(device: torch.device) -> torch.device | None:
    """Return the device_map of from_pretrained; None is the host."""
    return None if device.type == "cpu" else device


def _choose_numbers(
    dequantisation: Dequantisation | None, dtype: torch.dtype | None
) -> dict[str, object]:
    """Return the arguments of from_pretrained for the type of the weights."""
    if dequantisation is None:
        return {"dtype": dtype or "auto"}
    return {"dtype": dequantisation.dtype, "config": dequantisation.config}


def _read_tensors(
    build: Any,
    folder: Path,
    formats: tuple[WeightFormat, ...],
    model_config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype | None,
    attention: str | dict[str, str] | None,
    may_lack: tuple[str, ...],
    take_parts: TakeParts | None,
    keeps: bool,
) -> PreTrainedModel:
    """Build a model and read its weights, one by one.

    Args:
      formats: of weights that are dequantised as they are read, or kept.
      dtype: of the model; None is the dtype of its first weight.
    """
    model: PreTrainedModel
    kept: KeptWeights | None = None
    try:
        with open_tensors(folder, formats, dtype or torch.float32) as tensors:
            if dtype is None:
                dtype = _find_first_dtype(tensors)
            if take_parts is not None:
                tensors = dict(take_parts(tensors))
            if keeps:
                whole = _build_on_meta(build, model_config)
                kept = KeptWeights(whole, device, dtype)
                tensors = kept.replace(tensors)
            model, report = _find_class(build, model_config).from_pretrained(
                None,
                config=model_config,
                state_dict=tensors,
                attn_implementation=attention,
                output_loading_info=True,
                device_map=_map_device(device),
                dtype=dtype,
            )
    except UnfitLayer:
        raise
    except Exception as error:
        raise WeightsBroken(str(folder), shorten_message(error)) from error
    parts = {f".{name}" for form in formats for name in form.names}
    for name in sorted(map(str, report["unexpected_keys"])):
        if name.endswith(tuple(parts)) and not name.endswith(".weight"):
            raise WeightsBroken(str(folder), f"{name} lacks the tensors beside it")
    _check_report(report, folder, may_lack)
    if kept is not None:
        kept.put(model)
    # from_pretrained reads it from a folder, and has none here.
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _find_own_dtype(model_config: PreTrainedConfig) -> torch.dtype | None:
    dtype = model_config.get_text_config(decoder=True).dtype
    return dtype if isinstance(dtype, torch.dtype) else None


def _find_first_dtype(tensors: Mapping[str, Any]) -> torch.dtype:
    """Return the type of the first weight, as transformers does for "auto"."""
    names = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types = (names.get(tensor.get_dtype()) for tensor in tensors.values())
    return next((each for each in types if each is not None), torch.float32)


def _find_class(build: Any, model_config: PreTrainedConfig) -> Any:
    """Return the class of a model; transformers' AutoModel classes want a folder."""
    if isinstance(build, type) and issubclass(build, PreTrainedModel):
        return build
    return type(_build_on_meta(build, model_config))


def _build_on_meta(build: Any, model_config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model without memory for its weights."""
    is_class = isinstance(build, type) and issubclass(build, PreTrainedModel)
    make = build._from_config if is_class else build.from_config
    with torch.device("meta"):
        # The constructor may write to its configuration.
        model: PreTrainedModel = make(copy.deepcopy(model_config))
    return model


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
