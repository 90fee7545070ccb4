"""Reads a tokenizer without transformers, where the result is the same.

transformers imports torch: together they take seconds and 350 MB, which a server with
its engine in another process would need for this alone.

Source: models/auto/tokenization_auto.py and tokenization_utils_tokenizers.py of
transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator
import logging
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, processors

from .model_tokenizer import ModelTokenizer, write_rules
from .rebuilt_tokenizers import check_rebuilt
from .tokenizer_files import TokenizerFiles, UnknownTokenizer, read_files
from .vocabulary import list_decoders

logger = logging.getLogger(__name__)

# The class that takes tokenizer.json as it is, and its older name without "Fast".
_PLAIN: Final = "TokenizersBackend"
_OLD_PLAIN: Final = "PreTrainedTokenizer"

# Types of models with this class, whatever their files name.
PLAIN_TYPES: Final = frozenset(
    {
        *("ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm4_moe", "gpt_bigcode"),
        *("granite", "granitemoe", "ministral", "mistral", "mixtral"),
        *("modernbert", "nemotron", "olmo2", "olmo3", "phi3", "phimoe", "stablelm"),
    }
)

# Types of models with another class, whatever their files name.
FORCED_CLASSES: Final = {
    "hyperclovax_vision_v2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "qwen4_exp": "Qwen3_5Tokenizer",
    "siglip2": "Siglip2Tokenizer",
}


def read_tokenizer(folder: Path) -> ModelTokenizer | None:
    """Read the tokenizer of a folder.

    Returns:
      The tokenizer; None if only transformers can read it, or name the mistake.
    """
    try:
        return _read(folder)
    except UnknownTokenizer as error:
        logger.debug("transformers reads the tokenizer: %s", error)
    # The parsers of broken files raise errors of many classes. transformers will raise
    # its own.
    except Exception as error:
        logger.debug("the tokenizer cannot be read: %r", error)
    return None


def _read(folder: Path) -> ModelTokenizer:
    files = read_files(folder)
    if (folder / "tekken.json").exists():
        raise UnknownTokenizer("tekken.json")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    class_name = _find_class(files, backend)
    if class_name != _PLAIN:
        check_rebuilt(class_name, files, backend)
    special_tokens = files.special_tokens
    padding = backend.padding or {}
    if padding and "pad_token" not in files.named:
        special_tokens["pad_token"] = padding["pad_token"]
    backend.no_truncation()
    backend.no_padding()
    _add_missing(files, special_tokens, backend)
    if backend.post_processor is None:
        # Pairs have another type id for their second text.
        backend.post_processor = processors.TemplateProcessing(
            single="$A:0", pair="$A:0 $B:1", special_tokens=[]
        )
    return ModelTokenizer(
        source=str(folder),
        class_name=class_name,
        backend=backend,
        special_tokens=special_tokens,
        extra_special_tokens=files.extra,
        chat_templates=files.chat_templates,
        response_rules=write_rules(files.settings.get("response_template")),
        padding_side=files.settings.get("padding_side")
        or padding.get("direction", "right"),
    )


def _find_class(files: TokenizerFiles, backend: Tokenizer) -> str:
    """Return the name of the class that transformers chooses, without "Fast"."""
    if "model_name" in files.model:
        # transformers knows some models by this name.
        raise UnknownTokenizer("model_name")
    model_type = files.model.get("model_type")
    if model_type in FORCED_CLASSES:
        return FORCED_CLASSES[model_type]
    named = files.settings.get("tokenizer_class") or files.model.get("tokenizer_class")
    if named is None:
        raise UnknownTokenizer("no tokenizer_class")
    class_name = str(named).removesuffix("Fast")
    # Many models with Llama 3's tokenizer name the class of Llama 2's.
    is_llama3 = class_name == "LlamaTokenizer" and "ByteLevel" in list_decoders(backend)
    is_plain = class_name == _OLD_PLAIN or model_type in PLAIN_TYPES
    return _PLAIN if is_plain or is_llama3 else class_name


def _add_missing(
    files: TokenizerFiles, special_tokens: dict[str, str], backend: Tokenizer
) -> None:
    """Add the special tokens that tokenizer.json does not have as such."""
    present = backend.get_added_tokens_decoder()
    if files.added is not None:
        known = set(map(repr, present.values()))
        for token in files.added.values():
            if repr(AddedToken(**token)) not in known:
                raise UnknownTokenizer("added tokens that tokenizer.json does not have")
    contents = {token.content for token in present.values()}
    missing = [
        token
        for token in _unique(*special_tokens.values(), *files.extra)
        if token not in contents
    ]
    if files.styled.intersection(missing):
        raise UnknownTokenizer("special tokens with settings of their own")
    backend.add_tokens([AddedToken(token, special=True) for token in missing])


def _unique(*tokens: str) -> Iterator[str]:
    return iter(dict.fromkeys(tokens))
