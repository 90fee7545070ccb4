"""Suggests a path for an unknown one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

# Beginnings that clients leave out, repeat, or have from another server.
_BEGINNINGS: Final = frozenset({"api", "openai", "v1", "v2", "v3"})

# Paths of other servers, and mistakes, without such a beginning.
_OTHERS: Final = {
    # Ollama.
    "chat": "/v1/chat/completions",
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "tags": "/v1/models",
    "show": "/v1/models",
    "ps": "/v1/requests",
    # llama.cpp.
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "props": "/v1/models",
    "slots": "/v1/requests",
    # Text Generation Inference and SGLang.
    "generate_stream": "/v1/completions",
    "info": "/v1/models",
    "get_model_info": "/v1/models",
    "health_generate": "/readyz",
    "chat/completion": "/v1/chat/completions",
    "model": "/v1/models",
    "message": "/v1/messages",
    "response": "/v1/responses",
    "healthz": "/health",
    "ready": "/readyz",
    "live": "/livez",
}

# A longer path is not looked at, nor repeated.
_MAX_CHARACTERS: Final = 200


def find_meant_path(
    path: str, list_methods: Callable[[str], Iterable[str]]
) -> str | None:
    """Return a method and a path such as "POST /v1/completions", or None.

    Args:
      list_methods: returns the methods of a path; none if there is no such path.
    """
    if len(path) > _MAX_CHARACTERS:
        return None
    for meant in _list_paths(path):
        methods = {*list_methods(meant)} - {"HEAD", "OPTIONS"}
        # A handler may say that there is no such path, too.
        if methods and meant != path.rstrip("/"):
            return f"{' or '.join(sorted(methods))} {meant}"
    return None


def _list_paths(path: str) -> Iterator[str]:
    parts = [each for each in path.split("/") if each]
    while parts and parts[0].lower() in _BEGINNINGS:
        del parts[0]
    rest = "/".join(parts)
    if other := _OTHERS.get(rest.lower()):
        yield other
    if rest:
        for each in (rest, rest.lower()):
            yield f"/v1/{each}"
            yield f"/{each}"
