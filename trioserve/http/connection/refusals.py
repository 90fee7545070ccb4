"""Answers that the app does not make: to malformed requests and excess connections."""

from __future__ import annotations

import h11

from ...errors import TrioserveError, Unavailable
from ..wire.encode import encode
from ..wire.error_body import ErrorBody
from ..wire.request_id import HEADER_BYTES, make_request_id


def refuse(
    error: TrioserveError, headers: list[tuple[bytes, bytes]]
) -> tuple[h11.Response, h11.Data, h11.EndOfMessage]:
    """Make the answer to an error, after which the connection closes.

    Args:
      headers: added to the headers of the body.
    """
    body = encode(ErrorBody.of(error))
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (HEADER_BYTES, make_request_id().encode()),
    ]
    if isinstance(error, Unavailable):
        fields.append((b"retry-after", b"%d" % error.retry_after_seconds))
    head = h11.Response(status_code=error.status, headers=fields + headers)
    return head, h11.Data(data=body), h11.EndOfMessage()


def refuse_unread(error: TrioserveError) -> bytes:
    """Return the bytes of the answer to a request that was not read."""
    connection = h11.Connection(h11.SERVER)
    return b"".join(connection.send(event) or b"" for event in refuse(error, []))
