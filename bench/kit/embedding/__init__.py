"""Texts to embed, sentence-transformers in a process, and servers of vectors."""
