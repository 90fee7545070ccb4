"""The answers of POST /v2/embed and of POST /v1/embed; see pooling/answers.py."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..pooling.answers import CohereMeta, Numbers


class CohereVectors(
    msgspec.Struct, frozen=True, kw_only=True, rename={"float_": "float"}
):
    """Vectors in each requested form.

    Args:
      binary, ubinary: bits, eight to a number.
      base64: of little-endian float32.
    """

    float_: tuple[Numbers, ...] | UnsetType = UNSET
    binary: tuple[Numbers, ...] | UnsetType = UNSET
    ubinary: tuple[Numbers, ...] | UnsetType = UNSET
    base64: tuple[str, ...] | UnsetType = UNSET


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v2/embed, and of POST /v1/embed with embedding_types."""

    id: str
    embeddings: CohereVectors
    texts: tuple[str, ...] | UnsetType = UNSET
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class CohereFloats(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /v1/embed."""

    id: str
    embeddings: tuple[Numbers, ...] = ()
    texts: tuple[str, ...] | UnsetType = UNSET
    meta: CohereMeta
    response_type: Literal["embeddings_floats"] = "embeddings_floats"
