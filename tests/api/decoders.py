"""The decoders of all endpoints, by the structs of their requests."""

from __future__ import annotations

from typing import Any

from trioserve.api.decode.decoder import BodyDecoder
from trioserve.server.routes import ROUTES

DECODERS = {body.request_type: body for route in ROUTES for body in route.bodies}


def find_decoder(request_type: type[Any]) -> BodyDecoder[Any]:
    decoder = DECODERS[request_type]
    assert isinstance(decoder, BodyDecoder)
    return decoder


def decode_body(
    request_type: type[Any], body: bytes, *args: Any, **options: Any
) -> Any:
    return find_decoder(request_type).decode(body, *args, **options)
