"""Writes the small files of a GGUF file's model: configuration and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
import struct
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import UnsupportedModel
from ..observe.progress import show_progress
from ..processes.threads.stopping import check_stopped
from .gguf_header import GgufHeader

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


def describe_gguf(header: GgufHeader, folder: Path, source: str) -> None:
    """Write the configuration and the tokenizer of a GGUF file's model.

    Raises:
      UnsupportedModel: transformers does not know its kind.
      OSError: the folder cannot be written.
    """
    facts = _collect_facts(header)
    name = header.file.path.name
    with (
        naming_architecture(header.file.architecture, f"read {name}"),
        # The tokenizer takes some seconds.
        show_progress(f"reading the tokenizer of {name}"),
    ):
        folder.mkdir()
        _save_config(header, folder, facts)
        check_stopped()
        _save_tokenizer(header, folder, facts)


@contextmanager
def naming_architecture(architecture: str, work: str) -> Iterator[None]:
    """Turn transformers' errors for a whole file into errors that name its kind.

    Either the folder cannot be written, or transformers does not support the model, which
    it reports by errors of many classes.

    Raises:
      UnsupportedModel, OSError
    """
    try:
        yield
    except Exception as error:
        # Imported here, because it imports torch.
        from .gguf_families import Unreadable

        if isinstance(error, Unreadable):
            raise UnsupportedModel(architecture, str(error)) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        if _is_disk_error(error):
            raise OSError(reason) from error
        raise UnsupportedModel(
            architecture, f"transformers cannot {work}: {reason}"
        ) from error


def _is_disk_error(error: Exception) -> bool:
    """Return whether an error is the disk's; OSErrors of transformers have no errno."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        return error.errno is not None
    # Only writing raises it here, because the file that is read is not in safetensors.
    return isinstance(error, SafetensorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Metadata of the file; transformers ignores a part of them.

    Args:
      dtype: torch's name of the type of the saved weights.
      pre_tokenizer: llama.cpp's name for the rule that splits text before merging.
      end_token_ids: each of them ends an answer; the first is the tokenizer's eos.
    """

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


def _collect_facts(header: GgufHeader) -> _Facts:
    def read_id(key: str) -> int | None:
        return header.get_number(f"tokenizer.ggml.{key}")

    ends = [read_id(key) for key in _END_KEYS]
    return _Facts(
        dtype=_choose_dtype({tensor.kind for tensor in header.file.tensors}),
        pre_tokenizer=header.get_text("tokenizer.ggml.pre"),
        chat_template=header.get_text("tokenizer.chat_template"),
        bos_token_id=read_id("bos_token_id"),
        pad_token_id=read_id("padding_token_id"),
        end_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )


def _choose_dtype(kinds: set[str]) -> str:
    if kinds <= {"F32"}:
        return "float32"
    if kinds <= {"F32", "F16"}:
        return "float16"
    # Quantised weights have 2 to 8 bits, so the error of quantisation is larger than
    # the error of bfloat16's 8 bits of precision. float32 would double the folder, the
    # memory and the time of a step.
    return "bfloat16"


# ---- the configuration ---------------------------------------------------------------


def _save_config(header: GgufHeader, folder: Path, facts: _Facts) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = _make_config(header, folder.parent)
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    config.architectures = [model_class.__name__]
    config.dtype = facts.dtype
    config.eos_token_id = facts.eos_token_id
    embedding = {t.name: t.shape for t in header.file.tensors}["token_embd.weight"]
    config.vocab_size = embedding[0]
    config.save_pretrained(folder)
    GenerationConfig.from_dict(
        {
            "bos_token_id": facts.bos_token_id,
            "eos_token_id": facts.eos_token_id,
            "pad_token_id": facts.pad_token_id,
        }
    ).save_pretrained(folder)


def _make_config(header: GgufHeader, scratch: Path) -> Any:
    from transformers import AutoConfig

    from .gguf_families import find_family

    family = find_family(header.file.architecture)
    if family is not None:
        shapes = {tensor.name: tensor.shape for tensor in header.file.tensors}
        return AutoConfig.for_model(**family.make_config(header.list_values(), shapes))
    with TemporaryDirectory(dir=scratch) as inner:
        stub = Path(inner) / "stub.gguf"
        stub.write_bytes(_make_stub(header))
        return AutoConfig.from_pretrained(inner, gguf_file=stub.name)


def _make_stub(header: GgufHeader) -> bytes:
    """Return a GGUF file with the metadata that a configuration is made of.

    transformers would read the vocabulary for seconds. Of the tensors it asks whether
    there is an output projection.
    """
    is_there = any(tensor.name == "output.weight" for tensor in header.file.tensors)
    entries = [
        # The list is there, and empty.
        (
            entry.head + struct.pack("<Q", 0)
            if key.startswith("tokenizer.") and entry.head
            else bytes(entry.raw)
        )
        for key, entry in header.entries.items()
        if key != "general.alignment"
    ]
    name = b"output.weight"
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 1, 0, 0)
    stub = b"".join(
        [
            b"GGUF" + struct.pack("<IQQ", 3, int(is_there), len(entries)),
            *entries,
            tensor if is_there else b"",
        ]
    )
    # The padding before the data, and more than one number of data.
    return stub + bytes(64)


# ---- the tokenizer -------------------------------------------------------------------


def _save_tokenizer(header: GgufHeader, folder: Path, facts: _Facts) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from .gguf_families import find_family

    path = header.file.path
    # AutoTokenizer would read the configuration by transformers' own rules.
    tokenizer_class: Any = AutoTokenizer
    if find_family(header.file.architecture) is not None:
        tokenizer_class = PreTrainedTokenizerFast
        _check_splitting(header, facts)
    tokenizer = tokenizer_class.from_pretrained(path.parent, gguf_file=path.name)
    if facts.pre_tokenizer in _SINGLE_DIGITS:
        _split_digits(tokenizer.backend_tokenizer)
    if facts.chat_template is not None:
        tokenizer.chat_template = facts.chat_template
    if facts.end_token_ids:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(facts.end_token_ids[0])
    tokenizer.save_pretrained(folder)


def _check_splitting(header: GgufHeader, facts: _Facts) -> None:
    """Refuse a vocabulary whose text would be split by another rule than its own.

    Raises:
      Unreadable
    """
    from transformers.integrations.gguf import gguf_tokenizer_mapping

    from .gguf_families import Unreadable

    known = {*gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS, *_SINGLE_DIGITS}
    kind = header.get_text("tokenizer.ggml.model")
    if kind == "gpt2" and facts.pre_tokenizer not in known:
        raise Unreadable(f"its text is split by the rule {facts.pre_tokenizer}")


def _split_digits(backend: Any) -> None:
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
