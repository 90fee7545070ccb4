"""The renderer of models that pool: texts -> model inputs, and vectors -> answers.

texts              the inputs and options of a request
renderer           PoolingRenderer: runs jobs in renderer workers
loading            a model's folder -> PoolingRenderer
recipes            the treatment of one kind of text in a request
rendering, pairs   texts or pairs of texts -> model inputs: whole, cut, or in chunks
layout             special tokens
prompts            prompts of sentence-transformers
late_interaction   queries and documents of models with a vector for each token
tokenizer          the first or last tokens of a text, without reading all of it
dividing           divides a long text without changing its tokens
vectors            numbers -> JSON, base64 or bytes
"""

from .loading import PoolingParts, load_pooling_parts, make_pooling_renderer
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
    "make_pooling_renderer",
]
