"""Embeddings, pooling, classes, scores and ranks of texts."""
