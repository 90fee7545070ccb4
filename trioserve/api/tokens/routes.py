"""The endpoints of the tokenizer."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import JSON
from .answers import Detokenized, Tokenized, TokenizerInfo
from .handler import answer_detokenize, answer_tokenize, answer_tokenizer_info
from .requests import DETOKENIZE_BODY, TOKENIZE_BODY

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/tokenize",),
        handler=answer_tokenize,
        summary="Convert text or messages to token ids.",
        bodies=(TOKENIZE_BODY,),
        example={"prompt": "Hello!"},
        answers={JSON: Tokenized},
    ),
    Route(
        method="POST",
        paths=("/detokenize",),
        handler=answer_detokenize,
        summary="Convert token ids to text.",
        bodies=(DETOKENIZE_BODY,),
        example={"tokens": [1, 2, 3]},
        answers={JSON: Detokenized},
    ),
    Route(
        method="GET",
        paths=("/tokenizer_info",),
        handler=answer_tokenizer_info,
        summary="Describe the tokenizer.",
        answers={JSON: TokenizerInfo},
        errors={"404": "An option (--enable-tokenizer-info-endpoint) turns it on."},
    ),
)
