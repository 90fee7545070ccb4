"""Cohere's API: POST /v1/embed and POST /v2/embed."""
