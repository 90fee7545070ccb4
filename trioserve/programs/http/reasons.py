"""The reasons of missing answers and refusals, from errors of libraries and bodies of errors."""

from __future__ import annotations

import json
import os
import socket
import ssl


def find_cause(error: BaseException) -> ssl.SSLError | OSError | None:
    """Return the error that says most: of TLS, or with a number of the system.

    Libraries wrap it, and trio has one for each address of a host.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__
    return None


def explain_connection(error: BaseException) -> str:
    """Return the reason in a few words, such as "Connection refused"."""
    cause = find_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message})"
    if isinstance(cause, ssl.SSLError):
        return f"it speaks no TLS ({cause.reason})"
    if cause is None:
        return str(error) or type(error).__name__
    # The numbers of this error are its own.
    if isinstance(cause, socket.gaierror) or cause.errno is None:
        return cause.strerror or str(cause)
    return os.strerror(cause.errno)


def explain_no_answer(where: str, error: BaseException) -> str:
    """Return a sentence for a user of --url and --tls-cafile.

    Args:
      where: the server.
    """
    cause = find_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {where} is not trusted: {cause.verify_message} "
            "(--tls-cafile names others)"
        )
    if isinstance(cause, ssl.SSLError):
        return f"{where} speaks no TLS: {cause.reason}"
    # The name in h11 and in the libraries above it.
    if cause is None and type(error).__name__ == "RemoteProtocolError":
        return f"{where} gives no answer in HTTP; if it speaks TLS, write https://"
    return (
        f"no server answers at {where}: {explain_connection(error)}; start one by "
        "`trioserve serve`, or name it by --url"
    )


def read_reason(body: bytes) -> str:
    """Return the message in the body of an error, whose form differs; "" if there is none."""
    try:
        content = json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    return find_reason(content.get("error", content))


def find_reason(error: object) -> str:
    """Return the message of an error, which is a text or an object; "" if there is none."""
    if isinstance(error, str):
        return error
    if isinstance(error, dict):
        # Names of OpenAI, FastAPI, and small servers.
        for name in ("message", "detail", "error"):
            if isinstance(error.get(name), str):
                return str(error[name])
    return ""
