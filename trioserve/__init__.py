"""trioserve: an LLM inference server whose every request is one cancel scope."""

__version__ = "0.1.0"
