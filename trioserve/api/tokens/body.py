"""The decoders of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Final

from ..chat.body import CHAT_PAYLOADS, TEMPLATE_FIELDS
from ..decode.decoder import BodyDecoder
from ..decode.values import decode_ids
from .requests import DetokenizeRequest, TokenizeRequest

TOKENIZE_BODY: Final = BodyDecoder(
    TokenizeRequest,
    TEMPLATE_FIELDS,
    refused={
        "documents": ([],),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    },
    payloads=CHAT_PAYLOADS,
)
DETOKENIZE_BODY: Final = BodyDecoder(DetokenizeRequest, {"tokens": decode_ids})
