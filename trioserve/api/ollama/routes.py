"""The endpoints of Ollama's API, and their errors."""

from __future__ import annotations

from typing import Final

from ...http.route import Dialect, Route
from ...http.wire.respond import JSON, LINES
from .answers import (
    ChatLine,
    GenerateLine,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaError,
)
from .body import (
    GENERATE_BODY,
    OLLAMA_CHAT_BODY,
    OLLAMA_EMBED_BODY,
    OLLAMA_EMBEDDING_BODY,
    SHOW_BODY,
)
from .embed import answer_ollama_embed, answer_ollama_embedding
from .handler import answer_generate, answer_ollama_chat
from .models import (
    LoadedModels,
    ModelTags,
    OllamaVersion,
    ShownModel,
    answer_loaded,
    answer_ollama_version,
    answer_show,
    answer_tags,
)

OLLAMA: Final = Dialect(
    error=OllamaError,
    describe=OllamaError.of,
    list_fields=lambda request_id, use: {},
    base="/api",
)

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/api/chat",),
        handler=answer_ollama_chat,
        summary="Answer a conversation, in the form of Ollama's API.",
        bodies=(OLLAMA_CHAT_BODY,),
        example={
            "model": "MODEL",
            "messages": [{"role": "user", "content": "Hello!"}],
            "stream": False,
        },
        answers={LINES: ChatLine, JSON: ChatLine},
        dialect=OLLAMA,
    ),
    Route(
        method="POST",
        paths=("/api/generate",),
        handler=answer_generate,
        summary="Answer a prompt, in the form of Ollama's API.",
        bodies=(GENERATE_BODY,),
        example={"model": "MODEL", "prompt": "Hello!", "stream": False},
        answers={LINES: GenerateLine, JSON: GenerateLine},
        dialect=OLLAMA,
    ),
    Route(
        method="POST",
        paths=("/api/embed",),
        handler=answer_ollama_embed,
        summary="Embed texts, in the form of Ollama's API.",
        bodies=(OLLAMA_EMBED_BODY,),
        example={"model": "MODEL", "input": ["A text."]},
        answers={JSON: OllamaEmbeddings},
        dialect=OLLAMA,
    ),
    Route(
        method="POST",
        paths=("/api/embeddings",),
        handler=answer_ollama_embedding,
        summary="Embed a text, in the older form of Ollama's API.",
        bodies=(OLLAMA_EMBEDDING_BODY,),
        example={"model": "MODEL", "prompt": "A text."},
        answers={JSON: OllamaEmbedding},
        dialect=OLLAMA,
    ),
    Route(
        method="GET",
        paths=("/api/tags",),
        handler=answer_tags,
        summary="List the model that is served, in the form of Ollama's API.",
        answers={JSON: ModelTags},
        dialect=OLLAMA,
    ),
    Route(
        method="POST",
        paths=("/api/show",),
        handler=answer_show,
        summary="Describe the model, in the form of Ollama's API.",
        bodies=(SHOW_BODY,),
        example={"model": "MODEL"},
        answers={JSON: ShownModel},
        dialect=OLLAMA,
    ),
    Route(
        method="GET",
        paths=("/api/ps",),
        handler=answer_loaded,
        summary="List the model that is loaded, in the form of Ollama's API.",
        answers={JSON: LoadedModels},
        dialect=OLLAMA,
    ),
    Route(
        method="GET",
        paths=("/api/version",),
        handler=answer_ollama_version,
        summary="Report the version of Ollama with the same API.",
        answers={JSON: OllamaVersion},
        dialect=OLLAMA,
    ),
)
