"""The reason is found in the bodies of all servers."""

from __future__ import annotations

import pytest

from trioserve.errors.error_bodies import read_reason


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
