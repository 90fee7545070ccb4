"""Kernels for GPUs, in Triton.

attend    attention over the paged cache, and the write to the cache

They know tensors and numbers, no plans and no models. On a machine without a GPU, Triton's
interpreter runs them for the tests (TRITON_INTERPRET=1). Modules here import triton, so they
are imported where a GPU is used.
"""
