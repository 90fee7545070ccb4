"""The reason is found below the errors of libraries, and in the bodies of all servers."""

from __future__ import annotations

import errno
import socket
import ssl

import h11
import pytest
import trio

from trioserve.programs.http.reasons import (
    explain_connection,
    explain_no_answer,
    read_reason,
)

WRONG_VERSION = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
WRONG_VERSION.reason = "WRONG_VERSION_NUMBER"


def wrap(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "Connection refused"),
        (
            wrap(
                OSError("all attempts to connect to a failed"),
                ExceptionGroup("m", [OSError(errno.EHOSTUNREACH, "x")]),
            ),
            "No route to host",
        ),
        (
            wrap(trio.BrokenResourceError(), OSError(errno.ECONNRESET, "x")),
            "Connection reset by peer",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            wrap(trio.BrokenResourceError(), WRONG_VERSION),
            "it speaks no TLS (WRONG_VERSION_NUMBER)",
        ),
        (TimeoutError("timed out"), "timed out"),
        (trio.BrokenResourceError(), "BrokenResourceError"),
    ],
)
def test_the_reason_is_found(error: BaseException, reason: str) -> None:
    assert explain_connection(error) == reason


def test_sentences_say_what_to_do() -> None:
    where = "https://a"
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "x")
    assert explain_no_answer(where, refused) == (
        "no server answers at https://a: Connection refused; start one by `trioserve "
        "serve`, or name it by --url"
    )
    error = wrap(trio.BrokenResourceError(), WRONG_VERSION)
    assert (
        explain_no_answer(where, error)
        == "https://a speaks no TLS: WRONG_VERSION_NUMBER"
    )
    assert explain_no_answer("http://a", h11.RemoteProtocolError("x")) == (
        "http://a gives no answer in HTTP; if it speaks TLS, write https://"
    )
    untrusted = ssl.SSLCertVerificationError(1, "x")
    untrusted.verify_message = "self-signed certificate"
    assert explain_no_answer(where, untrusted) == (
        "the certificate of https://a is not trusted: self-signed certificate "
        "(--tls-cafile names others)"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        # OpenAI, trioserve, vLLM and llama-server; Anthropic has a type around it.
        (b'{"error": {"message": "no", "code": 400}}', "no"),
        (b'{"type": "error", "error": {"message": "no"}}', "no"),
        # Older releases of vLLM, FastAPI and Ollama.
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": "no"}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"error": {"message": 3}}', ""),
        # A line end inside of a text is not JSON, and some servers write it.
        (b'{"error": "no\n"}', "no\n"),
        (b'["no"]', ""),
        (b"<html>", ""),
        (b"\xff\xfe\xff", ""),
        (b"[" * 100_000, ""),
        (b"", ""),
    ],
)
def test_each_form(body: bytes, reason: str) -> None:
    assert read_reason(body) == reason
