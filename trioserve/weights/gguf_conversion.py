"""Converts a GGUF file to safetensors, once.

transformers needs some twenty seconds to read a GGUF file and unpack it in memory,
every time. The converted folder loads in one second.
"""

from __future__ import annotations

import logging
from pathlib import Path
import shutil
from typing import Any

from ..observe.progress import show_progress
from ..processes.threads.stopping import checking_torch_calls
from .gguf_description import naming_architecture
from .gguf_header import read_header

logger = logging.getLogger(__name__)


def convert_gguf(path: Path, description: Path, folder: Path, source: str) -> None:
    """Write a GGUF file's model as safetensors.

    Args:
      description: the folder of its small files, which are copied.

    Raises:
      WeightsBroken: the file is truncated or corrupt.
      UnsupportedModel: the file is whole, but transformers cannot read its kind.
      OSError: the folder cannot be written.
    """
    architecture = read_header(path, source).file.architecture
    logger.info("converting %s to safetensors, once", path.name)
    with (
        naming_architecture(architecture, f"convert {path.name}"),
        # Converting takes twenty seconds, and may be cancelled.
        checking_torch_calls(),
        show_progress(f"converting {path.name}"),
    ):
        _save_model(path, description, folder)
    for file in description.glob("*"):
        # save_pretrained writes files with the same names as the description's.
        if file.suffix != ".gguf":
            shutil.copyfile(file, folder / file.name)


def _save_model(path: Path, description: Path, folder: Path) -> None:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        modeling_gguf_pytorch_utils,
    )

    config: Any = AutoConfig.from_pretrained(description)
    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        names = build.from_config(config)
    reading: Any = modeling_gguf_pytorch_utils
    # Its bar would fill logs and pipes; show_progress tells how long it takes.
    reading.tqdm = lambda tensors, **_: tensors
    tensors = reading.load_gguf_checkpoint(
        path, return_tensors=True, model_to_load=names, torch_dtype=config.dtype
    )["tensors"]
    # Its argument gguf_file would want the package accelerate, and not use it.
    model_class: Any = type(names)
    model = model_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=config.dtype
    )
    model.save_pretrained(folder)
