"""Attention over the paged cache: the place where a device's best kernel stands.

`choose_kernel` is the only function that decides. A kernel gets one layer's flat
queries, keys and values, writes the keys and values to the cache and reads through
the step's layout. (Where the projections run is no choice of this room: they are the
linear modules of transformers' model.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .bridge import AttentionCall
from .kv_cache import LayerCache
from .layout import AttentionLayout, Chunk, DecodeBucket

Kernel = Callable[
    [Tensor, Tensor, Tensor, LayerCache, Tensor, AttentionLayout, AttentionCall], Tensor
]


def choose_kernel(device: torch.device) -> Kernel:
    """Return the kernel for a device."""
    # PyTorch's own operators run everywhere; on a CPU with bfloat16 instructions they
    # were measured faster than products and softmax written out.
    del device
    return attend_by_gathering


def attend_by_gathering(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache,
    slot_mapping: Tensor,
    layout: AttentionLayout,
    call: AttentionCall,
) -> Tensor:
    """Gather each sequence's blocks, then attend with PyTorch's own operators.

    Args:
      query: (num_tokens, num_heads, key_dim)
      key: (num_tokens, num_kv_heads, key_dim)
      value: (num_tokens, num_kv_heads, value_dim)
      cache: the layer's keys and values.
      slot_mapping: (num_tokens,) where in the cache each token goes
      layout: what each sequence reads.
      call: the layer's wishes.

    Returns:
      (num_tokens, num_heads, value_dim)
    """
    # All is written before anything is read: a row may read what a row beside it
    # writes, where both share a block.
    cache.write(slot_mapping, key, value)
    parts = [
        _attend_bucket(query[bucket.begin : bucket.end], cache, bucket, call)
        for bucket in layout.buckets
    ]
    for chunk in layout.chunks:
        span = slice(chunk.begin, chunk.end)
        if chunk.block_ids is None:
            keys, values = key[span], value[span]
        else:
            keys, values = cache.read(chunk.block_ids)
        parts.append(_attend_chunk(query[span], keys, values, chunk, call))
    # Invariant: buckets, then chunks, cover the flat tokens in order.
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_bucket(
    query: Tensor, cache: LayerCache, bucket: DecodeBucket, call: AttentionCall
) -> Tensor:
    num_rows, num_heads, key_dim = query.shape
    keys, values = cache.read(bucket.block_ids)
    num_kv_heads, value_dim = values.shape[1:]
    # The heads that share keys stand where a longer query's tokens would, so keys and
    # values are never repeated.
    output = _attend(
        query.reshape(num_rows, num_kv_heads, -1, key_dim),
        keys.unflatten(0, (num_rows, -1)).transpose(1, 2),
        values.unflatten(0, (num_rows, -1)).transpose(1, 2),
        bucket.mask,
        call,
        (1, num_kv_heads, -1, 1),
    )  # (num_rows, num_kv_heads, group_size, value_dim)
    return output.reshape(num_rows, num_heads, value_dim)


def _attend_chunk(
    query: Tensor, keys: Tensor, values: Tensor, chunk: Chunk, call: AttentionCall
) -> Tensor:
    num_tokens, num_heads, _ = query.shape
    num_kv_heads, value_dim = values.shape[1:]
    group_size = num_heads // num_kv_heads
    keys = keys[: chunk.num_keys].transpose(0, 1)[:, None]
    values = values[: chunk.num_keys].transpose(0, 1)[:, None]
    # Each head's group is a batch of its own; expanding repeats keys and values by a
    # stride of 0, without a copy.
    output = _attend(
        query.transpose(0, 1).unflatten(0, (num_kv_heads, group_size)),
        keys.expand(-1, group_size, -1, -1),
        values.expand(-1, group_size, -1, -1),
        chunk.mask,
        call,
        (num_kv_heads, -1, 1, 1),
    )  # (num_kv_heads, group_size, num_tokens, value_dim)
    return output.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, value_dim)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    call: AttentionCall,
    sinks_shape: tuple[int, ...],
) -> Tensor:
    if not call.needs_scores:
        return scaled_dot_product_attention(
            query, keys, values, mask, is_causal=mask is None, scale=call.scaling
        )
    assert mask is not None, "layers that work on scores are laid out with masks"
    return _attend_by_scores(query, keys, values, mask, call, sinks_shape)


def _attend_by_scores(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    call: AttentionCall,
    sinks_shape: tuple[int, ...],
) -> Tensor:
    """Attention written out, as transformers' eager functions do it."""
    scores = torch.matmul(query, keys.transpose(-1, -2)) * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores + mask
    num_keys = scores.shape[-1]
    if call.sinks is not None:
        sinks = call.sinks.view(sinks_shape).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks.to(scores.dtype)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., :num_keys]
    return torch.matmul(weights.to(values.dtype), values)
