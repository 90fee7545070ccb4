"""Reads the settings of sentence-transformers, PyLate and ColBERT in a model's folder.

Only JSON is read: no code, no weights. A setting that is not supported is refused by
name.
"""

from .folder import read_sentence_folder

__all__ = ["read_sentence_folder"]
