"""Tokenizers that transformers builds anew.

Some of its classes take only the vocabulary from tokenizer.json, and build the rest
themselves. If the file describes the same rest, it can be read alone.

Source: models/*/tokenization_*.py of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import json
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from .tokenizer_files import TokenizerFiles, UnknownTokenizer

_QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_MODEL_SETTINGS: Final = (
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges", "max_input_chars_per_word"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """A class of transformers.

    Args:
      names: special tokens with default values. Files that do not name them are not
        read here, because the values would depend on the class.
      build: makes a tokenizer with an empty vocabulary.
      check: raises UnknownTokenizer if other steps of the class would change the
        tokenizer.
    """

    names: frozenset[str]
    build: Callable[[TokenizerFiles], Tokenizer]
    check: Callable[[TokenizerFiles, Tokenizer], None]


def _build_bert(files: TokenizerFiles) -> Tokenizer:
    settings, special = files.settings, files.special_tokens
    built = Tokenizer(models.WordPiece(vocab={}, unk_token=special["unk_token"]))
    built.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece(prefix="##")
    return built


def _build_qwen2(files: TokenizerFiles) -> Tokenizer:
    built = Tokenizer(models.BPE(vocab={}, merges=[]))
    built.normalizer = normalizers.NFC()
    prefix_space = bool(files.settings.get("add_prefix_space"))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    return built


def check_rebuilt(class_name: str, files: TokenizerFiles, backend: Tokenizer) -> None:
    """Check that a class of transformers builds what tokenizer.json describes.

    Args:
      class_name: without "Fast" at its end.
      backend: tokenizer.json.

    Raises:
      UnknownTokenizer: it builds something else, or the class is not known here.
    """
    known = _CLASSES.get(class_name)
    if known is None or not known.names <= files.named.keys():
        raise UnknownTokenizer(class_name)
    if _describe(known.build(files)) != _describe(backend):
        raise UnknownTokenizer(f"{class_name} with parts of its own")
    _check_added(files, backend)
    known.check(files, backend)


def _describe(tokenizer: Tokenizer) -> list[object]:
    """Describe all of a tokenizer but its vocabulary and its post-processor."""
    model = tokenizer.model
    # "" and None both stand for no prefix and no suffix.
    settings = [getattr(model, name, None) or None for name in _MODEL_SETTINGS]
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    return [type(model), settings, *map(_read_state, parts)]


def _read_state(part: Any) -> object:
    if part is None:
        return None
    state = json.loads(part.__getstate__())
    for each in [state, *state.get("pretokenizers", ())]:
        if each["type"] == "ByteLevel":
            # A decoder ignores all of them; a pre-tokenizer ignores this one.
            names = list(each) if isinstance(part, decoders.Decoder) else []
            for name in {*names, "trim_offsets"} - {"type"}:
                each.pop(name, None)
    return state


def _check_added(files: TokenizerFiles, backend: Tokenizer) -> None:
    """Check that tokens which are added one by one get the same ids again."""
    added = sorted(backend.get_added_tokens_decoder().items())
    if files.added is not None:
        named = [(i, AddedToken(**token)) for i, token in sorted(files.added.items())]
        if repr(named) != repr(added):
            raise UnknownTokenizer("added tokens that tokenizer.json does not have")
    size = backend.get_vocab_size(with_added_tokens=False)
    for token_id, token in added:
        own = backend.model.token_to_id(token.content)
        if token_id != (size if own is None else own):
            raise UnknownTokenizer("added tokens with gaps between their ids")
        size += own is None


def _check_bert(files: TokenizerFiles, backend: Tokenizer) -> None:
    """Check the tokens around texts, which this class sets itself."""
    special = files.special_tokens
    begin, end = special["cls_token"], special["sep_token"]
    built = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0 {end}:0",
        pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(each, backend.token_to_id(each)) for each in (begin, end)],
    )
    if _read_state(built) != _read_state(backend.post_processor):
        raise UnknownTokenizer("BertTokenizer with other tokens around texts")


def _check_qwen2(files: TokenizerFiles, backend: Tokenizer) -> None:
    """Check the special tokens, which this class adds once more."""
    added = {
        token.content: token for token in backend.get_added_tokens_decoder().values()
    }
    for name in (*files.special_tokens.values(), *files.extra):
        if repr(added.get(name)) != repr(AddedToken(name, special=True)):
            raise UnknownTokenizer("Qwen2Tokenizer with other special tokens")


_CLASSES: Final[Mapping[str, _Class]] = {
    "BertTokenizer": _Class(
        names=frozenset(
            {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
        ),
        build=_build_bert,
        check=_check_bert,
    ),
    "Qwen2Tokenizer": _Class(
        names=frozenset({"unk_token", "bos_token", "eos_token", "pad_token"}),
        build=_build_qwen2,
        check=_check_qwen2,
    ),
}
