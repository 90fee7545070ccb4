"""Kernels for GPUs, in Triton.

attend, norm, rotate, activate    the kernels
attend_latents                    the kernel of layers that keep latents
convolve, recur                   the kernels of layers that keep a state
low_rank                          the kernels of adapters
route, grouped                    the kernels of experts
pair_changes                      the kernels of adapters of experts
read_tile, multiply               the kernels of few tokens, and of weights in fewer bits than 16
follow                            kernels that begin before the ones in front of them have ended
round_inputs                      inputs in eight bits, and their products by torch
draw, penalize, choose_plain      the kernels of the sampler
take_in                           the begin of a captured step
paged, paged_latents              the kernels of attention, called with tensors
adapters, adapted_pairs, experts,
  products, states, steps,
  sampling, decodes               the other kernels, called with tensors
matrices                          the weights of experts, as kernels read them
tiles                             the tokens of a step, cut for the kernels

They know tensors and numbers, no plans and no models. On a machine without a GPU, Triton's
interpreter runs them for the tests (TRITON_INTERPRET=1). Most modules here import triton, so they
are imported where a GPU is used.
"""
