"""The answers of models that pool, in the shapes of vLLM.

Numbers are `msgspec.Raw`: JSON that a renderer worker has written. `splice` inserts the
lists of an answer, which may be megabytes long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...http.wire.error_body import encode

EntryT = TypeVar("EntryT")

_NUMBERS: Final = {"type": "array", "items": {"type": "number"}}
_MATRIX: Final = {"type": "array", "items": _NUMBERS}
_TEXT: Final = {"type": "string"}

# The vector of a text, the vectors of its tokens, or the bytes of either as base64.
Vector = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"anyOf": [_NUMBERS, _MATRIX, _TEXT]})
]
Numbers = Annotated[msgspec.Raw, Meta(extra_json_schema=_NUMBERS)]


class PoolingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens that the model has read; it writes none."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None

    @classmethod
    def of(cls, num_tokens: int) -> PoolingUsage:
        return cls(prompt_tokens=num_tokens, total_tokens=num_tokens)


class PooledAnswer(msgspec.Struct, Generic[EntryT], frozen=True, kw_only=True):
    """An answer in vLLM's shape; `splice` inserts its entries."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: tuple[EntryT, ...] = ()
    usage: PoolingUsage


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one input."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: Vector


class EmbeddingList(PooledAnswer[Embedding], frozen=True, kw_only=True):
    """The answer of POST /v1/embeddings."""


class PooledData(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one input."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: Vector


class PooledList(PooledAnswer[PooledData], frozen=True, kw_only=True):
    """The answer of POST /pooling."""


class BriefUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens, in the short form of some endpoints."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, num_tokens: int) -> BriefUsage:
        return cls(prompt_tokens=num_tokens, total_tokens=num_tokens)


class BytesData(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a vector in the bytes of the answer."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: tuple[int, ...]


class BytesMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The header `metadata` of an answer in bytes, as JSON."""

    id: str
    created: int
    model: str
    data: tuple[BytesData, ...]
    usage: BriefUsage


class ClassifiedText(msgspec.Struct, frozen=True, kw_only=True):
    """The label of one text.

    Args:
      label: the most likely label.
      probs: the probability of each label, in the order of the model's labels.
    """

    index: int
    label: str
    probs: Numbers
    num_classes: int


class ClassificationList(PooledAnswer[ClassifiedText], frozen=True, kw_only=True):
    """The answer of POST /classify."""


class Score(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The score of a document for its query."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(PooledAnswer[Score], frozen=True, kw_only=True):
    """The answer of POST /score."""


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A document as it was sent."""

    text: str
    multi_modal: None = None


class Ranked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ranked document; `index` is its place in the request."""

    index: int
    document: RankedDocument | UnsetType = UNSET
    relevance_score: float


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of Cohere's API."""

    version: str = "2"


class CohereUnits(msgspec.Struct, frozen=True, kw_only=True):
    """The units that Cohere would bill."""

    input_tokens: int


class CohereMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that Cohere's clients read."""

    api_version: CohereVersion
    billed_units: CohereUnits

    @classmethod
    def of(cls, num_tokens: int, version: str) -> CohereMeta:
        return cls(
            api_version=CohereVersion(version=version),
            billed_units=CohereUnits(input_tokens=num_tokens),
        )


class RankedList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /rerank: the best document first."""

    id: str
    model: str
    usage: BriefUsage
    results: tuple[Ranked, ...] = ()
    meta: CohereMeta


def splice(content: msgspec.Struct, lists: Mapping[str, Sequence[bytes]]) -> bytes:
    """Encode an answer and insert entries into its empty lists.

    The entries are copied once, in a call that releases the GIL.

    Args:
      lists: the entries by the name of the field, in the order of the answer's fields.
    """
    pieces: list[bytes] = []
    rest = encode(content)
    for field, entries in lists.items():
        # This cannot be inside a string, where a quote has a backslash before it.
        before, found, rest = rest.partition(b'"%b":[]' % field.encode())
        assert found, "each of the lists is in the answer and empty"
        pieces += (before, found[:-1], *_separate(entries), b"]")
    return b"".join((*pieces, rest))


def _separate(entries: Sequence[bytes]) -> Iterator[bytes]:
    for index, entry in enumerate(entries):
        if index:
            yield b","
        yield entry
