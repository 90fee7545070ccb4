"""What clients may send to models that pool: one frozen struct for each endpoint.

As in requests.py, types, lengths and rules between fields are checked here; what
depends on the model is checked where a request meets it. Null means the same as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, cast, get_args

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from ...types.pooling import LongText, PoolingTask
from .messages import ContentPart, Message, Messages, Name
from .requests import (
    MAX_CACHE_SALT_CHARACTERS,
    ChatTemplateText,
    Int64,
    ModelRequest,
    RequestIdText,
    Side,
    TokenId,
    check_continuation,
)

# OpenAI's limit.
MAX_INPUTS: Final = 2048

# Cohere's limit.
MAX_DOCUMENTS: Final = 10_000

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]
Truncate = Literal["NONE", "START", "END"]
CohereType = Literal["float", "binary", "ubinary", "base64"]
COHERE_TYPES: Final[tuple[CohereType, ...]] = get_args(CohereType)

# What each field with a fixed set of values takes; see requests.py.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "encoding_format": get_args(EncodingFormat),
    "embed_dtype": get_args(EmbedDtype),
    "endianness": get_args(Endianness),
    "long_text": get_args(LongText),
    "task": get_args(PoolingTask),
    "truncate": get_args(Truncate),
}

AtLeastNothing = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)]

# A union may hold one array type only, so that the document shows mixtures, too;
# inputs.decode_inputs refuses them.
TextInputs = (
    str
    | Annotated[
        tuple[
            str
            | TokenId
            | Message
            | Annotated[tuple[TokenId | Message, ...], Meta(min_length=1)],
            ...,
        ],
        Meta(min_length=1),
    ]
)
ChatInputs = Annotated[tuple[Message | Messages, ...], Meta(min_length=1)]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is scored or embedded, where it does not come as a string.

    Args:
      text: all of it.
      content: or its parts, which are put together.
    """

    text: str | None = None
    content: tuple[ContentPart, ...] | None = None


# One text or several, each plain or wrapped.
ScoreTexts = (
    str
    | TextPart
    | Annotated[
        tuple[str | TextPart, ...], Meta(min_length=1, max_length=MAX_DOCUMENTS)
    ]
)

_CHAT_FIELDS: Final = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
)

# What is embedded: a text, its token ids, or a chat.
Item = str | tuple[int, ...] | tuple[Message, ...]


class PoolingFields(ModelRequest, frozen=True, kw_only=True):
    """What all requests have in common, Cohere's aside.

    Args:
      truncate_prompt_tokens: texts are cut to so many tokens; -1 stands for the model's
        length.
      truncation_side: from which they are cut; right keeps their beginnings.
      long_text: what is done with texts that are longer than the model.
      use_activation: bring vectors to length 1, scores of labels to probabilities.
      cache_salt: asks that nothing be shared with requests of another salt. Nothing is
        shared between requests that pool.
    """

    truncate_prompt_tokens: Int64 | None = None
    truncation_side: Side | None = None
    long_text: LongText | None = None
    use_activation: bool | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
    request_id: RequestIdText | None = None
    user: str | None = None

    def __post_init__(self) -> None:
        limit = self.truncate_prompt_tokens
        if limit is None:
            return
        if limit < -1 or limit == 0:
            raise InvalidParameter("truncate_prompt_tokens", "must be -1 or at least 1")
        if self.long_text not in (None, "truncate"):
            raise InvalidParameter(
                "long_text", "with truncate_prompt_tokens only truncate is taken"
            )


class TextFields(PoolingFields, frozen=True, kw_only=True):
    """What requests have in common that bring texts, token ids or chats.

    Args:
      prompt_name: of the model's prompts the one that is put before each text.
    """

    input: TextInputs | None = None
    messages: ChatInputs | None = None
    add_special_tokens: bool | None = None
    prompt_name: Name | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: ChatTemplateText | None = None
    chat_template_kwargs: dict[str, object] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.input is None) == (self.messages is None):
            raise InvalidParameter("input", "send either input or messages")
        check_continuation(self.add_generation_prompt, self.continue_final_message)
        if not self.has_texts:
            self._refuse("prompt_name", needs="texts")
            if not self.has_chats:
                # Ids are taken as they are.
                self._refuse("add_special_tokens", needs="texts or messages")
        if not self.has_chats:
            for name in _CHAT_FIELDS:
                self._refuse(name, needs="messages")

    @property
    def param(self) -> str:
        """The field that brought them."""
        return "messages" if self.input is None else "input"

    @property
    def items(self) -> tuple[Item, ...]:
        """Each text, list of token ids, or chat; all of one kind."""
        # Invariant: pooling_inputs.py left a tuple of these in either field.
        return cast(tuple[Item, ...], self.messages or self.input)

    @property
    def has_texts(self) -> bool:
        return isinstance(self.items[0], str)

    @property
    def has_chats(self) -> bool:
        return not self.has_texts and isinstance(self.items[0][0], Message)

    def _refuse(self, name: str, *, needs: str) -> None:
        if getattr(self, name):
            raise InvalidParameter(name, f"is only taken with {needs}")


class VectorFields(TextFields, frozen=True, kw_only=True):
    """How vectors are given back.

    Args:
      encoding_format: numbers or base64 in JSON; or the bytes of all vectors one after
        the other, with or without a header that says where each begins.
      dimensions: of a Matryoshka vector the first so many numbers.
    """

    encoding_format: EncodingFormat | None = None
    embed_dtype: EmbedDtype | None = None
    endianness: Endianness | None = None
    dimensions: Int64 | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding_format not in (None, "float"):
            return
        for name, neutral in (("embed_dtype", "float32"), ("endianness", "native")):
            if getattr(self, name) not in (None, neutral):
                raise InvalidParameter(
                    name, "is only taken with encoding_format base64 or bytes"
                )


class EmbeddingRequest(VectorFields, frozen=True, kw_only=True):
    """The body of POST /v1/embeddings."""


class PoolingRequest(VectorFields, frozen=True, kw_only=True):
    """The body of POST /pooling.

    Args:
      task: what is asked of the model, by default what it was made for.
    """

    task: PoolingTask | None = None


class ClassificationRequest(TextFields, frozen=True, kw_only=True):
    """The body of POST /classify."""


class ScoringFields(PoolingFields, frozen=True, kw_only=True):
    """How queries and documents are compared.

    Args:
      max_tokens_per_query, max_tokens_per_doc: a text is cut to so many tokens of its
        own; 0 does not cut it.
    """

    max_tokens_per_query: AtLeastNothing | None = None
    max_tokens_per_doc: AtLeastNothing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_text == "chunk":
            raise InvalidParameter("long_text", "chunks are not scored")


QUERY_FIELDS: Final = ("queries", "data_1", "text_1")
DOCUMENT_FIELDS: Final = ("documents", "items", "data_2", "text_2")


class ScoreRequest(ScoringFields, frozen=True, kw_only=True):
    """The body of POST /score: one field of queries and one of documents."""

    queries: ScoreTexts | None = None
    data_1: ScoreTexts | None = None
    text_1: ScoreTexts | None = None
    documents: ScoreTexts | None = None
    items: ScoreTexts | None = None
    data_2: ScoreTexts | None = None
    text_2: ScoreTexts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for names in (QUERY_FIELDS, DOCUMENT_FIELDS):
            if sum(getattr(self, name) is not None for name in names) != 1:
                raise InvalidParameter(names[0], f"send one of {', '.join(names)}")

    @property
    def query_param(self) -> str:
        return self._find_param(QUERY_FIELDS)

    @property
    def document_param(self) -> str:
        return self._find_param(DOCUMENT_FIELDS)

    def _find_param(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if getattr(self, name) is not None)

    def texts_of(self, param: str) -> tuple[str, ...]:
        # Invariant: pooling_inputs.py left the plain texts.
        return cast(tuple[str, ...], getattr(self, param))


class RerankRequest(ScoringFields, frozen=True, kw_only=True):
    """The body of POST /rerank.

    Args:
      top_n: so many documents are given back; 0 gives all.
      return_documents: with their texts; by default they are.
    """

    query: str | TextPart
    documents: ScoreTexts
    top_n: AtLeastNothing | None = None
    return_documents: bool | None = None

    @property
    def shows_documents(self) -> bool:
        return self.return_documents is not False

    @property
    def texts(self) -> tuple[str, ...]:
        # Invariant: pooling_inputs.py left the plain texts.
        return cast(tuple[str, ...], self.documents)

    @property
    def query_text(self) -> str:
        return cast(tuple[str, ...], self.query)[0]


class CohereEmbedRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /v2/embed and of POST /v1/embed.

    Args:
      input_type: what the texts are for: search_query, search_document, classification,
        clustering, or the name of one of the model's prompts.
      truncate: the side on which texts are cut that are too long; NONE refuses them.
      max_tokens: tokens of a text that are read at most.
    """

    input_type: Name | None = None
    texts: Annotated[tuple[str, ...], Meta(max_length=MAX_INPUTS)] | None = None
    inputs: Annotated[tuple[TextPart, ...], Meta(max_length=MAX_INPUTS)] | None = None
    embedding_types: tuple[str, ...] | None = None
    truncate: Truncate | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    output_dimension: Int64 | None = None
    priority: Int64 | None = None

    def __post_init__(self) -> None:
        if (self.texts is None) == (self.inputs is None):
            raise InvalidParameter("texts", "send either texts or inputs")
        if self.truncate == "NONE" and self.max_tokens is not None:
            raise InvalidParameter("max_tokens", "is only taken with START or END")
        for index, name in enumerate(self.embedding_types or ()):
            if name not in COHERE_TYPES:
                raise NotSupported(
                    f"embedding_types[{index}]",
                    f"vectors are given as {', '.join(COHERE_TYPES)}",
                )

    @property
    def param(self) -> str:
        """The field that brought the texts."""
        return "inputs" if self.texts is None else "texts"

    @property
    def plain_texts(self) -> tuple[str, ...]:
        # Invariant: pooling_inputs.py left the plain texts in either field.
        return cast(tuple[str, ...], self.texts or self.inputs)

    @property
    def types(self) -> tuple[CohereType, ...]:
        """How vectors are given back, each once; by default as numbers."""
        named = cast(tuple[CohereType, ...], self.embedding_types or ("float",))
        return tuple(dict.fromkeys(named))
