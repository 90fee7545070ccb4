"""The body of POST /v2/embed and of POST /v1/embed, and its decoder."""

from __future__ import annotations

from typing import Annotated, Final, Literal, cast, get_args

from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ..decode.decoder import BodyDecoder
from ..decode.fields import Int64, ModelRequest, Name
from ..pooling.inputs import decode_texts, decode_wrapped
from ..pooling.requests import MAX_INPUTS, TextPart

# Repeated names are taken, too.
_MAX_TYPES: Final = 16

Truncate = Literal["NONE", "START", "END"]
CohereType = Literal["float", "binary", "ubinary", "base64"]
COHERE_TYPES: Final[tuple[CohereType, ...]] = get_args(CohereType)


class CohereEmbedRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /v2/embed and of POST /v1/embed.

    Args:
      input_type: the purpose of the texts: search_query, search_document,
        classification, clustering, or the name of one of the model's prompts.
      truncate: the side that is cut off texts that are too long; NONE refuses them.
      max_tokens: texts are cut to so many tokens.
    """

    input_type: Name | None = None
    texts: Annotated[tuple[str, ...], Meta(max_length=MAX_INPUTS)] | None = None
    inputs: Annotated[tuple[TextPart, ...], Meta(max_length=MAX_INPUTS)] | None = None
    embedding_types: Annotated[tuple[str, ...], Meta(max_length=_MAX_TYPES)] | None = (
        None
    )
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
                    list_choices(COHERE_TYPES, name),
                )

    @property
    def param(self) -> str:
        """The name of the field with the texts."""
        return "inputs" if self.texts is None else "texts"

    @property
    def plain_texts(self) -> tuple[str, ...]:
        # Invariant: inputs.py made plain texts of both fields.
        return cast(tuple[str, ...], self.texts or self.inputs)

    @property
    def types(self) -> tuple[CohereType, ...]:
        """The requested forms of the vectors, without repetition; by default numbers."""
        named = cast(tuple[CohereType, ...], self.embedding_types or ("float",))
        return tuple(dict.fromkeys(named))


COHERE_EMBED_BODY: Final = BodyDecoder(
    CohereEmbedRequest,
    {"texts": decode_texts, "inputs": decode_wrapped},
    refused={"images": ([],)},
    bounds_ids=False,
)
