"""The error of an HTTP process that ends and gets no successor."""

from __future__ import annotations


class HttpProcessDied(Exception):
    """Raised when an HTTP process has ended and gets no successor; the message says how."""
