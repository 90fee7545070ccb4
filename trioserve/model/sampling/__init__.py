"""From logits to tokens, on the device.

sampler             the order of all that follows
operators           temperature, top-k, top-p, min-p and penalties, by torch
triton_operators    the same by kernels for GPUs; choose_operators compares the two
penalties           the tokens that came before, for penalties
bad_words           sequences of tokens that must not appear
processors          plug-ins that change logits
reasoning_budget    ends a thought that has used its tokens
draw                random draws that depend on the seed and the position alone
logprobs            the log probabilities that a request asked for
rows, launched      parameters by row, and the result
host_copy           results on their way to the host, in pinned memory
"""
