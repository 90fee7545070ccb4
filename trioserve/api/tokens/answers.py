"""The answers of the endpoints of the tokenizer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /tokenizer_info: fields of a tokenizer_config.json.

    Special tokens that the model does not have are left out.
    """

    tokenizer_class: str
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    unk_token: str | UnsetType = UNSET
    pad_token: str | UnsetType = UNSET
    sep_token: str | UnsetType = UNSET
    cls_token: str | UnsetType = UNSET
    mask_token: str | UnsetType = UNSET
    extra_special_tokens: tuple[str, ...]
    padding_side: str
    model_max_length: int
    chat_template: str | None
