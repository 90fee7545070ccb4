"""Factors of the vectors of tokens, in the embedding.

Falcon-H1 scales the vectors that it looks up for tokens, and not those that it is given. Here a
step may have both, and all are given. So the embedding scales its vectors, and the model does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_FACTOR = "embedding_multiplier"


def scale_in_embedding(model: Any) -> None:
    """Let the embedding scale the vectors of tokens, if a model scales these alone."""
    body, embedding = model.get_decoder(), model.get_input_embeddings()
    factor = getattr(body, _FACTOR, 1.0)
    if factor == 1.0 or not isinstance(embedding, nn.Embedding):
        return
    if embedding.weight.is_meta or not _scales_tokens_alone(body, embedding):
        return
    embedding.register_forward_hook(lambda module, args, vectors: vectors * factor)
    setattr(body, _FACTOR, 1.0)


def _scales_tokens_alone(body: Any, embedding: nn.Embedding) -> bool:
    token_ids = torch.zeros((1, 1), dtype=torch.int64, device=embedding.weight.device)
    with torch.inference_mode():
        by_tokens = _find_first_input(body, input_ids=token_ids)
        by_vectors = _find_first_input(body, inputs_embeds=embedding(token_ids))
    return not torch.equal(by_tokens, by_vectors)


def _find_first_input(body: Any, **arguments: Tensor) -> Tensor:
    """Return what the first layer reads; no layer runs."""

    def stop(layer: nn.Module, args: tuple[Any, ...], others: dict[str, Any]) -> None:
        raise _Found(args[0] if args else others["hidden_states"])

    hook = body.layers[0].register_forward_pre_hook(stop, with_kwargs=True)
    try:
        body(**arguments, use_cache=False)
    except _Found as found:
        return found.hidden
    finally:
        hook.remove()
    raise AssertionError("the first layer runs")


class _Found(Exception):
    """Raised by the first layer."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden
