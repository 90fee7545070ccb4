"""Loads of streamed text, for any server of the OpenAI API."""
