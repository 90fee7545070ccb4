"""Build a model and read its weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ...config import ModelConfig
from ...errors import WeightsBroken, shorten_message
from .config_file import read_config
from .quantisation import Dequantisation, plan_dequantisation

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
    dequantisation = plan_dequantisation(read_config(folder), dtype)
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
