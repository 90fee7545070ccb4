"""Errors that the client can mend: statuses of 400 and more, and a few of HTTP itself."""

from __future__ import annotations

from collections.abc import Sequence

from .base import TrioserveError
from .foreign_text import join_names


class RequestError(TrioserveError, status=400, code="BadRequestError"):
    """Raised when a request is at fault and its sender can mend it."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameter(RequestError):
    """Raised when a field has the wrong type or is out of its range."""

    def __init__(self, param: str | None, reason: str) -> None:
        super().__init__(f"{param}: {reason}" if param else reason, param=param)


class ContextLengthExceeded(RequestError):
    """Raised when a prompt and its max_tokens exceed the model's context length."""

    def __init__(
        self,
        *,
        num_tokens: int,
        limit: int,
        max_tokens: int = 0,
        param: str = "prompt",
        is_lower_bound: bool = False,
    ) -> None:
        at_least = "at least " if is_lower_bound else ""
        asked = f" and {max_tokens} output tokens were requested" if max_tokens else ""
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, the "
            f"prompt has {at_least}{num_tokens} tokens{asked}. Please reduce the "
            "length.",
            param=param,
        )
        self.num_tokens = num_tokens
        self.limit = limit


class NotSupported(RequestError):
    """Raised when a field is known but this server does not implement it."""

    def __init__(self, param: str, reason: str = "") -> None:
        because = f": {reason}" if reason else ""
        super().__init__(
            f"{param} is not supported by this server{because}", param=param
        )


class InvalidAdapter(RequestError):
    """Raised when an adapter's files are wrong, or the model cannot run it.

    Args:
      name: the adapter's, for clients.
      reason: names the field or the tensor.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot load the adapter {name!r}: {reason}")
        self.name = name
        self.reason = reason


class AdapterRefused(RequestError, code="InvalidUserInput"):
    """Raised when an adapter may not be loaded, whatever its files have; as vLLM's.

    Args:
      param: the field of the request.
    """

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}", param=param)
        self.reason = reason


class AdapterNotFound(RequestError, status=404, code="NotFoundError"):
    """Raised when a request names an adapter that is not loaded, or not any more."""

    def __init__(self, name: str, *, param: str = "model") -> None:
        super().__init__(
            f"The lora adapter '{name[:128]}' cannot be found.", param=param
        )
        self.name = name


class Unauthorized(RequestError, status=401, code="AuthenticationError"):
    """Raised when a request has no key, or a wrong one."""

    def __init__(self, *, has_key: bool) -> None:
        super().__init__(
            "The API key is not known here."
            if has_key
            else "This server needs an API key: Authorization: Bearer KEY, or X-Api-Key."
        )


class AdminKeyNeeded(RequestError, status=403, code="PermissionDeniedError"):
    """Raised when a request changes what all clients share, and its key may not."""

    def __init__(self) -> None:
        super().__init__(
            "This needs the key of an administrator: a line of --api-key-file with the word "
            "admin."
        )


class ModelNotFound(RequestError, status=404, code="NotFoundError"):
    """Raised when a request names a model that this server does not serve."""

    def __init__(self, name: str, *, served: Sequence[str]) -> None:
        names = join_names([f"`{each}`" for each in served])
        super().__init__(
            f"The model `{name[:128]}` does not exist; this server has {names}.",
            param="model",
        )
        self.name = name[:128]
        self.served = tuple(served)


class ResponseNotFound(RequestError, status=404, code="NotFoundError"):
    """Raised when a request names a response that is not stored, or not any more."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Response with id '{response_id[:128]}' not found.", param="response_id"
        )


class RequestNotFound(RequestError, status=404, code="NotFoundError"):
    """Raised when no request with an id is being answered, or it is another key's."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"No request with the id '{request_id[:128]}' is being answered.",
            param="request_id",
        )


class StreamNotFound(RequestError, status=404, code="NotFoundError"):
    """Raised when a client takes up a stream that is not there, or not any more."""

    def __init__(self) -> None:
        super().__init__(
            "Last-Event-ID: the server does not have the events behind this one. It keeps "
            "a stream for the time of --resume-seconds.",
            param="Last-Event-ID",
        )


class ResponseTooLarge(RequestError):
    """Raised when a response with its conversation is larger than the whole store."""

    def __init__(self, *, num_bytes: int, limit: int, param: str = "store") -> None:
        super().__init__(
            f"{param}: the response takes {num_bytes} bytes with its conversation, and "
            f"the server stores at most {limit} bytes (--max-responses-memory)",
            param=param,
        )


class EndpointOff(RequestError, status=404, code="NotFoundError"):
    """Raised when a request is for an endpoint that an option turns on."""

    def __init__(self, flag: str) -> None:
        super().__init__(f"This endpoint is off; start the server with {flag}.")


class TaskNotServed(RequestError):
    """Raised when a request needs a task that the model is not served for.

    Args:
      wanted, served: such as "generate" and "embed".
    """

    def __init__(self, name: str, *, wanted: str, served: str) -> None:
        super().__init__(
            f"The model `{name}` does not {wanted}; this server uses it to {served}.",
            param="model",
        )


class UploadTooSlow(RequestError, status=408, code="RequestTimeout"):
    """Raised when the body of a request arrives too slowly.

    Args:
      num_bytes, seconds: the longest time for each part of the body of so many bytes.
    """

    def __init__(self, num_bytes: int, seconds: float) -> None:
        super().__init__(
            f"The request body arrived too slowly: {num_bytes} bytes, or the rest, "
            f"must arrive within {seconds:g} seconds."
        )


class ReaderTooSlow(RequestError, status=408, code="RequestTimeout"):
    """Raised in a stream whose client has left too many tokens unread."""

    def __init__(self) -> None:
        super().__init__(
            "The stream was ended, because too much of it was waiting to be read."
        )


class PayloadTooLarge(RequestError, status=413, code="PayloadTooLarge"):
    """Raised when a request's body is longer than the server accepts."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is longer than {limit_bytes} bytes.")


class HostNotAllowed(RequestError, status=421, code="MisdirectedRequest"):
    """Raised when the host name in a request is not allowed."""

    def __init__(self, name: str, *, takes_keys: bool) -> None:
        also = ", or with a key" if takes_keys else ""
        super().__init__(
            f"The server does not know the host {name[:128]!r}. If it is a name of the server, "
            f"start it with --allowed-host and this name{also}."
        )


class UnsupportedMediaType(RequestError, status=415, code="UnsupportedMediaType"):
    """Raised when a header declares a body that the server does not read.

    Args:
      header: the name of the header.
      wanted: the value that the server reads.
    """

    def __init__(self, header: str, wanted: str) -> None:
        super().__init__(f"{header} must be {wanted}.")
        self.header = header
        self.wanted = wanted


class MalformedRequest(RequestError):
    """Raised when a request breaks HTTP/1.1, or needs an unsupported part of it.

    Args:
      status: 414 for a target that is too long, 431 for such a head, 501 for an unknown
        Transfer-Encoding, 505 for an unknown version, and 400 for everything else.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"The request is malformed: {reason}.")
        self.status = status
