"""Texts, token ids, chats and pairs to what a pooling model reads at once; and vectors to
what an answer carries.

    texts        what may be asked
    renderer     the door: jobs in renderer workers
    recipes      how the texts of one request are brought to the model
    rendering    texts to inputs: whole, cut, or in chunks; pairs has those of two
    tokens       as many of a text's tokens as anybody reads
    vectors      numbers to JSON, base64 or bytes
"""

from .loading import (
    PoolingParts,
    load_pooling_parts,
    load_pooling_renderer,
    make_pooling_renderer,
)
from .renderer import PoolingRenderer
from .texts import ChatInput, TextInput, TextOptions, count_text

__all__ = [
    "ChatInput",
    "PoolingParts",
    "PoolingRenderer",
    "TextInput",
    "TextOptions",
    "count_text",
    "load_pooling_parts",
    "load_pooling_renderer",
    "make_pooling_renderer",
]
