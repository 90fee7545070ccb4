"""Ollama's API: the endpoints below /api/, for tools that speak no other API."""
