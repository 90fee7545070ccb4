"""Attention for transformers' models, by backends of our own.

bridge          the function that transformers calls -> the attention of this step
probe           the attention layers of a model, found by running it once
backend         the protocol of attention backends
choose          the table of backends, and the choice among them
self_check      compares a backend with torch's operators, on its device
gather          the paged backend of torch's own operators, on any device
paged_triton    the paged backend of Triton's kernels, for GPUs
paged_varlen    the paged backend of PyTorch's flash attention, for GPUs
flat            the encoder backend of torch's own operators
latents         attention over latents, from which all heads' keys and values follow
scores          attention written out, for layers that change their scores
kv_cache        the paged cache of keys and values
cache_memory    the number of KV blocks that fit into memory
"""
