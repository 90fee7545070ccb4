"""Checks GGUF files, and converts each once to a folder in Hugging Face layout.

transformers needs some twenty seconds to read a GGUF file and unpack it in memory,
every time. The converted folder loads in one second.
"""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
from importlib.util import find_spec
import logging
from pathlib import Path
import re
import struct
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModel, WeightsBroken
from ..observe.progress import show_progress
from ..threads.stopping import checking_torch_calls
from .cache import build_once, cache_folder

if TYPE_CHECKING:
    from gguf import GGUFReader

logger = logging.getLogger(__name__)

# transformers 5.23 refuses GGUF files without both packages, but never uses accelerate
# here.
_NEEDED_PACKAGES = ("gguf", "accelerate")

# The quantisation at the end of a file's name: .Q4_1, -q4_k_m, .IQ3_XS, -f16.
_QUANTISATION = re.compile(r"[.-](i?q\d\w*|tq\d\w*|mxfp4\w*|b?f16|f32)$", re.IGNORECASE)

# Each of these tokens ends a turn: the end of a sequence, of a turn and of a message.
# Source: llama.cpp, llama_vocab::impl::load, the set of "end of generation" tokens.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# Vocabularies whose merges were learned with each digit as a word. transformers 5.23
# splits text as for GPT-2, and then "\n\n12" has other tokens than in the model's
# training. Source: llama.cpp, llm_tokenizer_bpe, the case with
# LLAMA_VOCAB_PRE_TYPE_SMOLLM.
_SINGLE_DIGITS = (
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
)


def name_model(path: Path) -> str:
    """Return the file's name without the quantisation, as the model's name."""
    return _QUANTISATION.sub("", path.stem) or path.stem


def check_packages(source: str) -> None:
    """Check that GGUF files can be converted here, before anything is fetched or read.

    Raises:
      WeightsBroken: packages that trioserve requires are missing.
    """
    missing = [name for name in _NEEDED_PACKAGES if find_spec(name) is None]
    if missing:
        reason = f"a GGUF file needs {' and '.join(missing)}"
        raise WeightsBroken(source, f"{reason}; run pip install {' '.join(missing)}")


def resolve_gguf(path: Path, source: str) -> Path:
    """Find the converted folder of a GGUF file in the cache, or convert it.

    Raises:
      WeightsBroken: the file is truncated or corrupt, or packages are missing.
      WeightsNotFound: the cache cannot be written.
      UnsupportedModel: the file is whole, but transformers cannot read its kind.
    """
    check_packages(source)
    entry = cache_folder() / "gguf" / _hash_file(path, source)

    def build(folder: Path) -> None:
        convert_gguf(path, folder / name_model(path), source)

    return build_once(entry, build, source)


def convert_gguf(path: Path, folder: Path, source: str) -> None:
    """Write a GGUF file's model as safetensors, with its tokenizer and configuration.

    Raises:
      WeightsBroken: the file is truncated or corrupt.
      UnsupportedModel: the file is whole, but transformers cannot read its kind.
      OSError: the folder cannot be written.
    """
    facts = _read_facts(path, source)
    logger.info("converting %s to safetensors, once", path.name)
    try:
        _save_tokenizer(path, folder, facts)
        # Converting takes twenty seconds, and may be cancelled.
        with checking_torch_calls(), show_progress(f"converting {path.name}"):
            _save_model(path, folder, facts)
    # The file is complete. So either the folder cannot be written, or transformers does
    # not support the model, which it reports by errors of many classes.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if _is_disk_error(error):
            raise OSError(reason) from error
        raise UnsupportedModel(
            facts.architecture, f"transformers cannot convert {path.name}: {reason}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Metadata of the file; transformers ignores a part of them.

    Args:
      dtype: torch's name of the type of the saved weights.
      pre_tokenizer: llama.cpp's name for the rule that splits text before merging.
      end_token_ids: each of them ends an answer; the first is the tokenizer's eos.
    """

    architecture: str
    dtype: str
    pre_tokenizer: str | None
    chat_template: str | None
    bos_token_id: int | None
    pad_token_id: int | None
    end_token_ids: tuple[int, ...]

    @property
    def eos_token_id(self) -> int | list[int] | None:
        """Return the ids as configurations write them: None, one id or a list."""
        if len(self.end_token_ids) > 1:
            return list(self.end_token_ids)
        return self.end_token_ids[0] if self.end_token_ids else None


def _is_disk_error(error: Exception) -> bool:
    """Whether an error is the disk's; OSErrors of transformers have no errno."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        return error.errno is not None
    # Only writing raises it here, because the file that is read is no safetensors file.
    return isinstance(error, SafetensorError)


def _hash_file(path: Path, source: str) -> str:
    # A hash of the content, not of size and time: a copied or moved file is not
    # converted again, and an overwritten file is. 100 MB take 0.17 s, less than loading
    # the result.
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise WeightsBroken(source, f"{error.strerror or error}") from error


def _read_facts(path: Path, source: str) -> _Facts:
    from gguf import GGUFReader

    try:
        # The reader maps every tensor to its bytes, so a truncated file fails here.
        reader = GGUFReader(path)
        _check_not_split(reader, source)
        return _collect_facts(reader)
    except OSError as error:
        raise WeightsBroken(source, f"{error.strerror or error}") from error
    # Errors of the reader for corrupt numbers.
    except (ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
        reason = f"{path.name} is truncated or is not a GGUF file ({error})"
        raise WeightsBroken(source, reason) from error


def _check_not_split(reader: GGUFReader, source: str) -> None:
    count = _read_number(reader, "split.count") or 1
    if count > 1:
        reason = f"it is one of {count} parts; join them with llama-gguf-split --merge"
        raise WeightsBroken(source, reason)


def _collect_facts(reader: GGUFReader) -> _Facts:
    def read_id(key: str) -> int | None:
        return _read_number(reader, f"tokenizer.ggml.{key}")

    ends = [read_id(key) for key in _END_KEYS]
    return _Facts(
        architecture=_read_text(reader, "general.architecture") or "unknown",
        dtype=_choose_dtype({tensor.tensor_type.name for tensor in reader.tensors}),
        pre_tokenizer=_read_text(reader, "tokenizer.ggml.pre"),
        chat_template=_read_text(reader, "tokenizer.chat_template"),
        bos_token_id=read_id("bos_token_id"),
        pad_token_id=read_id("padding_token_id"),
        end_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )


def _choose_dtype(tensor_types: set[str]) -> str:
    if tensor_types <= {"F32"}:
        return "float32"
    if tensor_types <= {"F32", "F16"}:
        return "float16"
    # Quantised weights have 2 to 8 bits, so the error of quantisation is larger than
    # that of bfloat16's 8 bits of precision. float32 would double the folder, the
    # memory and the time of a step.
    return "bfloat16"


def _read_text(reader: GGUFReader, key: str) -> str | None:
    field = reader.get_field(key)
    return bytes(field.parts[field.data[0]]).decode() if field else None


def _read_number(reader: GGUFReader, key: str) -> int | None:
    field = reader.get_field(key)
    return int(field.parts[field.data[0]][0]) if field else None


def _save_tokenizer(path: Path, folder: Path, facts: _Facts) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if facts.pre_tokenizer in _SINGLE_DIGITS:
        _split_digits(tokenizer.backend_tokenizer)
    if facts.chat_template is not None:
        tokenizer.chat_template = facts.chat_template
    if facts.end_token_ids:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(facts.end_token_ids[0])
    tokenizer.save_pretrained(folder)


def _split_digits(backend: Any) -> None:
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _save_model(path: Path, folder: Path, facts: _Facts) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=getattr(torch, facts.dtype),
        # Packed weights can be neither saved nor run on paged attention.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.config.eos_token_id = facts.eos_token_id
    model.generation_config = GenerationConfig.from_dict(
        {
            "bos_token_id": facts.bos_token_id,
            "eos_token_id": facts.eos_token_id,
            "pad_token_id": facts.pad_token_id,
        }
    )
    model.save_pretrained(folder)
