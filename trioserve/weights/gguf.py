"""Finds the model of a GGUF file: as it is, or converted to safetensors.

The native kernels read the blocks of the file itself. So a file gets a folder in the cache
that holds all of a model but its weights. Models that run by transformers' modules need
the weights as safetensors, which are kept in the cache, too.

    weights-2/gguf/HASH/NAME/         config.json, tokenizer ...; of a header
    weights-2/converted/HASH/NAME/    the same and model.safetensors; of a whole file

transformers needs some twenty seconds to read a GGUF file and unpack it in memory,
every time. The converted folder loads in one second.
"""

from __future__ import annotations

from dataclasses import replace
import hashlib
from importlib.util import find_spec
import logging
from pathlib import Path
import re
import shutil
from typing import Any

from ..errors import WeightsBroken
from ..observe.progress import show_progress
from ..processes.threads.stopping import checking_torch_calls
from ..types.gguf import GgufFile
from .cache import build_once, cache_folder
from .folder import check_description
from .gguf_description import describe_gguf, naming_architecture
from .gguf_header import read_header

logger = logging.getLogger(__name__)

# The name of the file in the folder of a wheel's model.
GGUF_FILE = "model.gguf"

# The quantisation at the end of a file's name: .Q4_1, -q4_k_m, .IQ3_XS, -f16.
_QUANTISATION = re.compile(r"[.-](i?q\d\w*|tq\d\w*|mxfp4\w*|b?f16|f32)$", re.IGNORECASE)


def name_model(path: Path) -> str:
    """Return the file's name without the quantisation, as the model's name."""
    return _QUANTISATION.sub("", path.stem) or path.stem


def check_packages(source: str) -> None:
    """Check that GGUF files can be read here, before anything is fetched or read.

    Raises:
      WeightsBroken: a package that trioserve requires is missing.
    """
    if find_spec("gguf") is None:
        reason = "a GGUF file needs gguf; run pip install gguf"
        raise WeightsBroken(source, reason)


def read_gguf(path: Path) -> GgufFile:
    """List the tensors of a GGUF file.

    Raises:
      WeightsBroken: the file is truncated or corrupt.
    """
    return _add_rules(read_header(path, str(path)).file)


def _add_rules(file: GgufFile) -> GgufFile:
    """Return a file with the rules of its family, if it has one."""
    # Imported here, because it imports torch.
    from .gguf_families import find_family

    family = find_family(file.architecture)
    return file if family is None else replace(file, make_rules=family.make_rules)


def resolve_gguf_description(path: Path, source: str) -> Path:
    """Find the folder of a GGUF file in the cache, or make it; it has no weights.

    Raises:
      WeightsBroken: the file is truncated or corrupt, or packages are missing.
      WeightsNotFound: the cache cannot be written.
      UnsupportedModel: the file is whole, but transformers does not know its kind.
    """
    check_packages(source)
    header = read_header(path, source)
    # A copied or moved file has the same folder, an overwritten file has another.
    digest = hashlib.sha256(header.raw).hexdigest()[:32]

    def build(folder: Path) -> None:
        describe_gguf(header, folder / name_model(path), source)

    return build_once(
        cache_folder() / "gguf" / digest, build, source, check=check_description
    )


def resolve_converted_gguf(path: Path, description: Path, source: str) -> Path:
    """Find the converted folder of a GGUF file in the cache, or convert the file.

    Args:
      description: the folder without weights.

    Raises:
      WeightsBroken: the file is truncated or corrupt.
      WeightsNotFound: the cache cannot be written.
      UnsupportedModel: transformers cannot convert its kind.
    """

    def build(folder: Path) -> None:
        convert_gguf(path, description, folder / description.name, source)

    return build_once(
        cache_folder() / "converted" / _hash_file(path, source), build, source
    )


def _hash_file(path: Path, source: str) -> str:
    # A hash of the content, not of size and time: a copied or moved file is not
    # converted again, and an overwritten file is. 100 MB take 0.17 s, less than loading
    # the result.
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise WeightsBroken(source, f"{error.strerror or error}") from error


def convert_gguf(path: Path, description: Path, folder: Path, source: str) -> None:
    """Write a GGUF file's model as safetensors.

    Args:
      description: the folder of its small files, which are copied.

    Raises:
      WeightsBroken: the file is truncated or corrupt.
      UnsupportedModel: the file is whole, but transformers cannot read its kind.
      OSError: the folder cannot be written.
    """
    header = read_header(path, source)
    logger.info("converting %s to safetensors, once", path.name)
    with (
        naming_architecture(header.file.architecture, f"convert {path.name}"),
        # Converting takes twenty seconds, and may be cancelled.
        checking_torch_calls(),
        show_progress(f"converting {path.name}"),
    ):
        _save_model(_add_rules(header.file), description, folder)
    for file in description.glob("*"):
        # save_pretrained writes files with the same names as the description's.
        if file.suffix != ".gguf":
            shutil.copyfile(file, folder / file.name)


def _save_model(file: GgufFile, description: Path, folder: Path) -> None:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        modeling_gguf_pytorch_utils,
    )

    from .gguf_families import read_tensors

    config: Any = AutoConfig.from_pretrained(description)
    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        names = build.from_config(config)
    if file.make_rules is not None:
        found = read_tensors(file, names, config.dtype)
        names.load_state_dict(found, assign=True)
        names.tie_weights()
        names.save_pretrained(folder)
        return
    reading: Any = modeling_gguf_pytorch_utils
    # Its bar would fill logs and pipes; show_progress tells how long it takes.
    reading.tqdm = lambda tensors, **_: tensors
    tensors = reading.load_gguf_checkpoint(
        file.path, return_tensors=True, model_to_load=names, torch_dtype=config.dtype
    )["tensors"]
    # Its argument gguf_file would want the package accelerate, and not use it.
    model_class: Any = type(names)
    model = model_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=config.dtype
    )
    model.save_pretrained(folder)
