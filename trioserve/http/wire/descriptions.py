"""The structs of answers about models, tokens and the server itself."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...types.model_info import ModelInfo
from ..progress import Phase


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trioserve"] = "trioserve"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


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


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being answered.

    Args:
      key: the name of the client's key; None if the server has no keys.
      phase: body, render, queue, prefill, decode or write.
      timeout_seconds: its time limit; None if it has none.
      prompt_tokens, completion_tokens: 0 before the engine has the request, and for
        requests that do not generate.
    """

    id: str
    object: Literal["request"] = "request"
    method: str
    path: str
    key: str | None
    phase: Phase
    age_seconds: float
    timeout_seconds: float | None
    prompt_tokens: int
    completion_tokens: int


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET and DELETE /v1/requests, the oldest request first."""

    object: Literal["list"] = "list"
    data: tuple[RequestCard, ...]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /version."""

    version: str


def describe_model(info: ModelInfo, *, created: int) -> ModelCard:
    """Describe the one model that is served; `created` is in seconds since 1970."""
    return ModelCard(
        id=info.name,
        created=created,
        root=info.name,
        max_model_len=info.max_model_len,
    )


def list_models(info: ModelInfo, *, created: int) -> ModelList:
    """Describe all models that are served; see describe_model."""
    return ModelList(data=(describe_model(info, created=created),))
