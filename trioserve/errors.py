"""Every error that leaves trioserve, with its HTTP status and code.

    TrioserveError
    * RequestError                  the client can mend it
      - InvalidParameter            400
      - ContextLengthExceeded       400
      - NotSupported                400
      - Unauthorized                401
      - ModelNotFound               404
      - ResponseNotFound            404
      - RequestNotFound             404
      - StreamNotFound              404
      - ResponseTooLarge            400
      - EndpointOff                 404
      - TaskNotServed               400
      - UploadTooSlow               408
      - ReaderTooSlow               408; only in streams
      - PayloadTooLarge             413
      - UnsupportedMediaType        415
      - MalformedRequest            400, 431, 501 or 505
    * Unavailable                   full or stopping; has `retry_after_seconds`
      - QueueFull                   429
      - RendererFull                429
      - BackgroundFull              429
      - KeyLimitReached             429
      - DeadlineUnreachable         503
      - RendererStuck               503
      - MemoryFull                  503
      - DescriptorsFull             503
      - ShuttingDown                503
      - EngineRestarting            503
    * RequestEnded                  ended before its time, by the client's wish
      - RequestCancelled            499; somebody ended the request by its id
      - DeadlineExceeded            504; the request's own time limit has passed
    * InternalError                 500; a defect of the server ended only this request
    * EngineDied                    500; the engine is broken, nothing can be retried
    * EngineStalled                 503; only an answer of /progressz
    * StartupError                  never reaches a client: the command line ends with 2
      - WeightsNotFound
      - WeightsBroken
      - UnsupportedModel
      - UnsupportedQuantization
      - NotEnoughMemory
      - InvalidConfig
      - ForeignOption
      - MissingExtra
      - PluginBroken
      - StagesNotMet

Constructors take facts and write the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self, TypeVar

__all__ = [
    "TrioserveError",
    "RequestError",
    "InvalidParameter",
    "ContextLengthExceeded",
    "NotSupported",
    "Unauthorized",
    "ModelNotFound",
    "ResponseNotFound",
    "RequestNotFound",
    "StreamNotFound",
    "ResponseTooLarge",
    "EndpointOff",
    "TaskNotServed",
    "UploadTooSlow",
    "ReaderTooSlow",
    "PayloadTooLarge",
    "UnsupportedMediaType",
    "MalformedRequest",
    "Unavailable",
    "QueueFull",
    "RendererFull",
    "BackgroundFull",
    "KeyLimitReached",
    "DeadlineUnreachable",
    "RendererStuck",
    "MemoryFull",
    "DescriptorsFull",
    "ShuttingDown",
    "EngineRestarting",
    "RequestEnded",
    "RequestCancelled",
    "DeadlineExceeded",
    "InternalError",
    "EngineDied",
    "EngineStalled",
    "StartupError",
    "WeightsNotFound",
    "WeightsBroken",
    "UnsupportedModel",
    "UnsupportedQuantization",
    "NotEnoughMemory",
    "InvalidConfig",
    "ForeignOption",
    "MissingExtra",
    "PluginBroken",
    "StagesNotMet",
    "find_first",
    "needing_extra",
]

ErrorT = TypeVar("ErrorT", bound=Exception)


def find_first(errors: ExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group and its nested groups: an answer has one."""
    error = errors.exceptions[0]
    return find_first(error) if isinstance(error, ExceptionGroup) else error


class TrioserveError(Exception):
    """The root of the tree; never raised itself.

    Attributes:
      status: of the answer, in HTTP.
      code: the family of the error, for clients.
      param: the field of the request that is wrong, if there is one.
    """

    status = 500
    code = "InternalServerError"
    param: str | None = None


class RequestError(TrioserveError):
    """Raised when a request is at fault and its sender can mend it."""

    status = 400
    code = "BadRequestError"

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


class Unauthorized(RequestError):
    """Raised when a request has no key, or a wrong one."""

    status = 401
    code = "AuthenticationError"

    def __init__(self, *, has_key: bool) -> None:
        super().__init__(
            "The API key is not known here."
            if has_key
            else "This server needs an API key: Authorization: Bearer KEY, or X-Api-Key."
        )


class ModelNotFound(RequestError):
    """Raised when a request names a model that this server does not serve."""

    status = 404
    code = "NotFoundError"

    def __init__(self, name: str, *, served: str) -> None:
        super().__init__(
            f"The model `{name[:128]}` does not exist; this server has `{served}`.",
            param="model",
        )


class ResponseNotFound(RequestError):
    """Raised when a request names a response that is not stored, or not any more."""

    status = 404
    code = "NotFoundError"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Response with id '{response_id[:128]}' not found.", param="response_id"
        )


class RequestNotFound(RequestError):
    """Raised when no request with an id is being answered, or it is another key's."""

    status = 404
    code = "NotFoundError"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"No request with the id '{request_id[:128]}' is being answered.",
            param="request_id",
        )


class StreamNotFound(RequestError):
    """Raised when a client takes up a stream that is not there, or not any more."""

    status = 404
    code = "NotFoundError"

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


class EndpointOff(RequestError):
    """Raised when a request is for an endpoint that an option turns on."""

    status = 404
    code = "NotFoundError"

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


class UploadTooSlow(RequestError):
    """Raised when the body of a request arrives too slowly.

    Args:
      num_bytes, seconds: the longest time for each part of the body of so many bytes.
    """

    status = 408
    code = "RequestTimeout"

    def __init__(self, num_bytes: int, seconds: float) -> None:
        super().__init__(
            f"The request body arrived too slowly: {num_bytes} bytes, or the rest, "
            f"must arrive within {seconds:g} seconds."
        )


class ReaderTooSlow(RequestError):
    """Raised in a stream whose client has left too many tokens unread."""

    status = 408
    code = "RequestTimeout"

    def __init__(self) -> None:
        super().__init__(
            "The stream was ended, because too much of it was waiting to be read."
        )


class PayloadTooLarge(RequestError):
    """Raised when a request's body is longer than the server accepts."""

    status = 413
    code = "PayloadTooLarge"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is longer than {limit_bytes} bytes.")


class UnsupportedMediaType(RequestError):
    """Raised when a header declares a body that the server does not read.

    Args:
      header: the name of the header.
      wanted: the value that the server reads.
    """

    status = 415
    code = "UnsupportedMediaType"

    def __init__(self, header: str, wanted: str) -> None:
        super().__init__(f"{header} must be {wanted}.")
        self.header = header
        self.wanted = wanted


class MalformedRequest(RequestError):
    """Raised when a request breaks HTTP/1.1, or needs an unsupported part of it.

    Args:
      status: 431 for a head that is too long, 501 for an unknown Transfer-Encoding, 505
        for an unknown version, and 400 for everything else.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"The request is malformed: {reason}.")
        self.status = status


class Unavailable(TrioserveError):
    """Raised when the server works but cannot take this request now."""

    status = 503
    code = "ServiceUnavailableError"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Unavailable):
    """Raised when the open requests leave too little room for another one.

    Args:
      what: the things that need room, in the plural: "sequences" or "texts".
      num_open: those of all open requests.
      num_possible: the most that one request may add now.
      num_new: those of the refused request.
    """

    status = 429
    code = "RateLimitError"

    def __init__(
        self,
        what: str,
        *,
        num_open: int,
        num_possible: int,
        num_new: int,
        retry_after_seconds: int,
    ) -> None:
        super().__init__(
            f"{num_open} {what} are already running or waiting. A request may add "
            f"{num_possible} now, and this one has {num_new}; please try again later.",
            retry_after_seconds=retry_after_seconds,
        )


class RendererFull(Unavailable):
    """Raised when too many requests, or too much text, wait for the renderer."""

    status = 429
    code = "RateLimitError"

    def __init__(self, *, num_requests: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{num_requests} requests are already waiting for the renderer; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )


class BackgroundFull(Unavailable):
    """Raised when too many responses are being generated in the background."""

    status = 429
    code = "RateLimitError"

    def __init__(self, *, num_running: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{num_running} responses are already being generated in the background; "
            "please try again later.",
            retry_after_seconds=retry_after_seconds,
        )


class KeyLimitReached(Unavailable):
    """Raised when a key has used up one of its limits.

    Args:
      limit: the limit and its value, as in the file with keys.
    """

    status = 429
    code = "RateLimitError"

    def __init__(self, name: str, *, limit: str, retry_after_seconds: int) -> None:
        super().__init__(
            f"The API key {name!r} has reached its limit ({limit}); please try again "
            "later.",
            retry_after_seconds=retry_after_seconds,
        )


class DeadlineUnreachable(Unavailable):
    """Raised when other requests would make a request late.

    The status is 503 and not 429: the client has not sent too much, and a load balancer
    tries another server after a 503.

    Args:
      param: the field or the option that limits the time.
      needed_seconds: the time that the request may need.
    """

    def __init__(
        self,
        param: str,
        *,
        needed_seconds: float,
        left_seconds: float,
        retry_after_seconds: int,
    ) -> None:
        super().__init__(
            f"{param}: because of other requests, this one may need "
            f"{needed_seconds:.1f} s, and it has {left_seconds:.1f} s left; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )
        self.param = param


class RendererStuck(Unavailable):
    """Raised when endless templates or images hold too many threads."""

    def __init__(self) -> None:
        # The server cannot estimate when such a thread ends.
        super().__init__(
            "Too many templates or images exceed their time limit; please try again "
            "later.",
            retry_after_seconds=10,
        )


class MemoryFull(Unavailable):
    """Raised when requests use all the memory for one purpose.

    Args:
      what: the content of that memory, in the plural, such as "images".
    """

    def __init__(self, what: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(
            f"The {what} of other requests use all the memory for {what}; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )


class DescriptorsFull(Unavailable):
    """Raised when there is no room for a connection, or no descriptor for a request."""

    def __init__(self) -> None:
        super().__init__(
            "The server has too many connections; please try again later.",
            retry_after_seconds=1,
        )


class ShuttingDown(Unavailable):
    """Raised when a request comes after the server has begun to stop."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", retry_after_seconds=10)


class EngineRestarting(Unavailable):
    """Raised when the engine has failed and is being started again."""

    def __init__(self) -> None:
        super().__init__(
            "The engine failed and is being started again.", retry_after_seconds=10
        )


class RequestEnded(TrioserveError):
    """Raised when a request ends before its time, because its client wants that."""


class RequestCancelled(RequestEnded):
    """Raised when a request is cancelled by another one; nginx's status for it is 499."""

    status = 499
    code = "RequestCancelled"

    def __init__(self) -> None:
        super().__init__("The request was cancelled by DELETE /v1/requests.")


class DeadlineExceeded(RequestEnded):
    """Raised when a request has used up its time before its answer began."""

    status = 504
    code = "DeadlineExceeded"

    def __init__(self, *, seconds: float, phase: str, param: str | None = None) -> None:
        limit = f"{param}={seconds:g}" if param else f"its time limit of {seconds:g} s"
        super().__init__(
            f"The request was in its phase {phase!r} when {limit} had passed."
        )
        self.param = param


class InternalError(TrioserveError):
    """Raised in place of an unexpected error; the log has the cause."""

    def __init__(self) -> None:
        super().__init__("Internal server error.")


class EngineDied(TrioserveError):
    """Raised in every open request when the engine loop has failed."""

    def __init__(self) -> None:
        super().__init__("The engine failed; the server is stopping.")


class EngineStalled(TrioserveError):
    """Raised by GET /progressz when the engine makes no progress."""

    status = 503

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The engine made no progress for {seconds:.1f} seconds.")


class StartupError(TrioserveError):
    """Raised before serving; the command line prints it and exits with 2."""


class WeightsNotFound(StartupError):
    """Raised when MODEL names nothing that can be found or downloaded."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot find the model {source!r}: {reason}")
        self.reason = reason


class WeightsBroken(StartupError):
    """Raised when a model's files are there but cannot be read."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"cannot read the model {source!r}: {reason}")


class UnsupportedModel(StartupError):
    """Raised when the model's architecture cannot run on paged attention."""

    def __init__(self, architecture: str, reason: str) -> None:
        super().__init__(f"the architecture {architecture} is not supported: {reason}")


class UnsupportedQuantization(StartupError):
    """Raised when a model's weights have an unsupported quantisation.

    Args:
      method: its name in the checkpoint.
      detail: the unsupported part, if the method alone does not identify it.
      can_dequantize: whether they can be dequantised, and the user has not said so.
    """

    def __init__(
        self, method: str, detail: str = "", *, can_dequantize: bool = False
    ) -> None:
        if can_dequantize:
            super().__init__(
                f"weights that are quantised by {method} are not computed with: "
                "--dequantize makes plain numbers of them, which take the memory of the "
                "unquantised model; or take a GGUF file of the model"
            )
            return
        form = f" ({detail})" if detail else ""
        super().__init__(
            f"weights that are quantised by {method}{form} are not supported: take the "
            "unquantised model, or a GGUF file of it"
        )


class NotEnoughMemory(StartupError):
    """Raised when a model does not fit the memory of this process.

    Args:
      reason: the message of the library that asked for memory, in one line.
      limit_bytes: the limit of the process's address space; None if there is none.
    """

    def __init__(self, reason: str, *, limit_bytes: int | None = None) -> None:
        limit = ""
        if limit_bytes is not None:
            limit = f" (this process has {limit_bytes / 2**30:.1f} GiB by ulimit -v)"
        super().__init__(
            f"there is not enough memory to load the model{limit}: {reason}"
        )


class InvalidConfig(StartupError):
    """Raised when an option is unknown, or its value or a pair of options is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"--{field.replace('_', '-')}: {reason}")
        self.field = field

    @classmethod
    def of_file(
        cls,
        field: str,
        verb: Literal["read", "write"],
        path: str | Path,
        error: Exception,
    ) -> Self:
        """Return the refusal of a file that an option names.

        Args:
          error: the message leaves out the number and the path of an OSError.
        """
        reason = error.strerror if isinstance(error, OSError) else None
        return cls(field, f"cannot {verb} {path}: {reason or error}")


class ForeignOption(StartupError):
    """Raised when an option is another server's.

    Args:
      explanation: the advice of config.foreign.explain_foreign.
    """

    def __init__(self, explanation: str) -> None:
        super().__init__(explanation)


class MissingExtra(StartupError):
    """Raised when a package is missing that an optional extra of trioserve installs.

    Args:
      extra: its name in setup.cfg.
      needed_by: what the user wanted: a command such as "trioserve chat", or a flag.
      error: the import that failed.
    """

    def __init__(self, extra: str, needed_by: str, error: ImportError) -> None:
        missing = f"{error.name}, which is not installed"
        if not isinstance(error, ModuleNotFoundError):
            # The package is there, and another version than ours, or damaged.
            missing = f"a package that cannot be imported ({shorten_message(error)})"
        super().__init__(
            f"{needed_by} needs {missing}: run pip install 'trioserve[{extra}]'"
        )
        self.extra = extra


@contextmanager
def needing_extra(extra: str, needed_by: str) -> Iterator[None]:
    """Explain imports that fail because an extra is not installed.

    The imports belong into the block, and nothing else:

        with needing_extra("simulate", "--timeline"):
            from matplotlib.figure import Figure

    Raises:
      MissingExtra: a package of the extra is missing or broken.
    """
    try:
        yield
    except ImportError as error:
        # A missing module of this project is a defect, which no installation mends.
        if (error.name or "").partition(".")[0] == __package__:
            raise
        raise MissingExtra(extra, needed_by, error) from error


class PluginBroken(StartupError):
    """Raised when an entry point of an installed distribution is no plug-in.

    Args:
      distribution: its name.
      entry_point: module:Class.
      reason: continues a sentence that begins with the entry point.
    """

    def __init__(self, distribution: str, entry_point: str, reason: str) -> None:
        super().__init__(f"{entry_point} of {distribution} {reason}")


class StagesNotMet(StartupError):
    """Raised when the stages that torchrun has started cannot work together."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the stages of the pipeline cannot work together: {reason}")


def shorten_message(error: BaseException) -> str:
    """Return the first line of a library's message; the lines after it are advice."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def escape(text: str) -> str:
    """Replace invisible characters by escapes, so that a text stays on its line of a terminal.

    Our own log calls use it, too: under hypercorn's command the formatter is not ours.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
