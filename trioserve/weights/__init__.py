"""Turns MODEL into a local folder in Hugging Face layout.

This room fetches, checks, unpacks and converts files. It does not know trio, the engine
or HTTP. It never runs code from a model: it loads no pickle and installs no wheel. Its
functions block, so callers run them in a thread.

Its doors are `resolve_description`, `complete_weights`, and `resolve_weights` for both at
once. `find_local` finds what is on this machine already, and `measure_weights` measures the
files. `cache_folder` is the user's cache of models. `read_gguf` lists the tensors of a GGUF
file, `read_gguf_adapter` reads an adapter, and `read_sentence_folder` the settings of embeddings.

    source            recognises the kind of MODEL
    hub, wheel, gguf  the hub, wheels of a package index, and GGUF files
    gguf_adapter      an adapter in a GGUF file
    gguf_header       the header of a GGUF file
    gguf_description  its configuration and tokenizer, as a folder has them
    gguf_families/    families whose files transformers' reader does not read
    measure           the sizes of a loaded model's files
    unpack            the model of a wheel
    folder, cache     checks of a folder, and the user's cache
    cached            the models of the caches, listed and removed
    sentence/         settings of sentence-transformers, PyLate and ColBERT
"""

from .cache import cache_folder
from .cached import CachedModel, find_users, list_cached_models, remove_cached_model
from .gguf import read_gguf
from .gguf_adapter import read_gguf_adapter
from .gguf_header import GgufHeader
from .measure import measure_weights
from .sentence import read_sentence_folder
from .source import (
    Weights,
    complete_weights,
    find_local,
    resolve_description,
    resolve_weights,
)

__all__ = [
    "CachedModel",
    "GgufHeader",
    "Weights",
    "cache_folder",
    "complete_weights",
    "find_local",
    "find_users",
    "list_cached_models",
    "measure_weights",
    "read_gguf",
    "read_gguf_adapter",
    "read_sentence_folder",
    "remove_cached_model",
    "resolve_description",
    "resolve_weights",
]
