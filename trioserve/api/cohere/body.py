"""The decoder of POST /v2/embed and of POST /v1/embed."""

from __future__ import annotations

from typing import Final

from ..decode.decoder import BodyDecoder
from ..pooling.inputs import decode_texts, decode_wrapped
from .requests import CohereEmbedRequest

COHERE_EMBED_BODY: Final = BodyDecoder(
    CohereEmbedRequest,
    {"texts": decode_texts, "inputs": decode_wrapped},
    refused={"images": ([],)},
    bounds_ids=False,
)
