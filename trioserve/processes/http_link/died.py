"""The error of a front process that ends and gets no successor."""

from __future__ import annotations


class FrontProcessDied(Exception):
    """Raised when a front process has ended and gets no successor; the message says how."""
