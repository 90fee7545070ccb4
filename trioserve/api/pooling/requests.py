"""Requests to models that pool: one frozen struct for each endpoint.

As in shared/requests.py, these structs check types, lengths, and rules between fields. Rules that
depend on the model are checked by the handlers. Null means the same as no field.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter
from ...types.pooling import LongText, PoolingTask
from ..decode.fields import (
    CacheSalt,
    ChatTemplateText,
    Int64,
    ModelRequest,
    Name,
    RequestIdText,
    Side,
    TokenId,
)
from ..shared.message_mappings import check_continuation
from ..shared.messages import MAX_PARTS, ContentPart, Message, Messages

# OpenAI's limit.
MAX_INPUTS: Final = 2048

# Cohere's limit.
MAX_DOCUMENTS: Final = 10_000

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]

AtLeastNothing = Annotated[int, Meta(ge=0, le=2**63 - 1)]

# msgspec allows one array type in a union. So the type allows mixed lists, too, and
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
    """A text that is scored or embedded, in an object.

    Args:
      text: the whole text.
      content: its parts, which are joined. Either this or `text` is sent.
    """

    text: str | None = None
    content: Annotated[tuple[ContentPart, ...], Meta(max_length=MAX_PARTS)] | None = (
        None
    )


# One text or several. Each is a string or an object.
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

# One input: a text, its token ids, or a chat.
Item = str | tuple[int, ...] | tuple[Message, ...]


class PoolingFields(ModelRequest, frozen=True, kw_only=True):
    """The fields of all requests except Cohere's.

    Args:
      truncate_prompt_tokens: texts are cut to so many tokens. -1 means the model's
        length.
      truncation_side: the side that is cut off; right keeps the beginnings.
      long_text: the treatment of texts that are longer than the model's length.
      use_activation: scale vectors to length 1, and scores of labels to probabilities.
      cache_salt: requests with different salts share no cache. Requests that pool share
        none anyway.
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
                "long_text", "must be truncate if truncate_prompt_tokens is sent"
            )


class TextFields(PoolingFields, frozen=True, kw_only=True):
    """The fields of requests with texts, token ids or chats.

    Args:
      prompt_name: the name of the model's prompt that is put before each text.
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
                # Nothing is added to token ids.
                self._refuse("add_special_tokens", needs="texts or messages")
        if not self.has_chats:
            for name in _CHAT_FIELDS:
                self._refuse(name, needs="messages")

    @property
    def param(self) -> str:
        """The name of the field with the inputs."""
        return "messages" if self.input is None else "input"

    @property
    def items(self) -> tuple[Item, ...]:
        """The texts, lists of token ids, or chats. All are of one kind."""
        # Invariant: inputs.py made a tuple of items for both fields.
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
    """The fields of requests for vectors.

    Args:
      encoding_format: numbers or base64 in JSON; or the bytes of all vectors one after
        the other, with or without a header that locates each of them.
      dimensions: the number of leading numbers to keep of a Matryoshka vector.
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
      task: the kind of result; by default the one that the model was made for.
    """

    task: PoolingTask | None = None


class ClassificationRequest(TextFields, frozen=True, kw_only=True):
    """The body of POST /classify."""


class ScoringFields(PoolingFields, frozen=True, kw_only=True):
    """The fields of requests that compare queries with documents.

    Args:
      max_tokens_per_query, max_tokens_per_doc: texts are cut to so many tokens; 0 does
        not cut them.
    """

    max_tokens_per_query: AtLeastNothing | None = None
    max_tokens_per_doc: AtLeastNothing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_text == "chunk":
            raise InvalidParameter("long_text", "chunk is not possible with scores")


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
        # Invariant: inputs.py made plain texts of the field.
        return cast(tuple[str, ...], getattr(self, param))


class RerankRequest(ScoringFields, frozen=True, kw_only=True):
    """The body of POST /rerank.

    Args:
      top_n: the number of documents in the answer; 0 means all.
      return_documents: whether the answer has the texts; by default it has them.
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
        # Invariant: inputs.py made plain texts of the field.
        return cast(tuple[str, ...], self.documents)

    @property
    def query_text(self) -> str:
        return cast(tuple[str, ...], self.query)[0]
