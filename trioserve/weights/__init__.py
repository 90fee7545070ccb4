"""Turns MODEL into a local folder in Hugging Face layout.

It fetches, checks, unpacks and converts files; it knows no trio, no engine and no
HTTP, and it never runs code that came with a model: no pickle, no wheel is installed.
Its functions block, so callers put them in a thread. The doors are `resolve_weights`, or
`resolve_description` and `complete_weights` one after the other, and, for what the folder
says of embeddings, `read_sentence_folder`.
"""

from .sentence import read_sentence_folder
from .source import Weights, complete_weights, resolve_description, resolve_weights

__all__ = [
    "Weights",
    "complete_weights",
    "read_sentence_folder",
    "resolve_description",
    "resolve_weights",
]
