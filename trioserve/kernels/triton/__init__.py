"""Kernels for GPUs, in Triton.

attend, norm, rotate, activate    the kernels
convolve, recur                   the kernels of layers that keep a state
paged, steps, states              the kernels, called with tensors
tiles                             the tokens of a step, cut for the kernels

They know tensors and numbers, no plans and no models. On a machine without a GPU, Triton's
interpreter runs them for the tests (TRITON_INTERPRET=1). Most modules here import triton, so they
are imported where a GPU is used.
"""
