"""Attention over a paged KV cache, behind one function that transformers calls.

bridge      transformers' attention interface -> the kernel of this step
kv_cache    the blocks and their memory
layout      which slots of the cache a step writes and reads
gather      a kernel of torch's own operators, on any device
probe       the attention layers of a model, found by running it once
"""
