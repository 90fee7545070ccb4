"""What the files of sentence-transformers, PyLate and ColBERT say of a model.

JSON alone is read: no code, no weights. What cannot be honoured is refused by its name.
"""

from .folder import read_sentence_folder

__all__ = ["read_sentence_folder"]
