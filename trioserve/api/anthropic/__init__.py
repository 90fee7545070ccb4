"""Anthropic's API: POST /v1/messages."""
