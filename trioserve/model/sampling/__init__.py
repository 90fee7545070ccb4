"""From logits to tokens, on the device.

sampler             temperature, top-k, top-p, min-p; the order of all that follows
penalties           repetition, presence and frequency penalties
bad_words           sequences of tokens that must not appear
processors          plug-ins that change logits
reasoning_budget    ends a thought that has used its tokens
draw                random draws that depend on the seed and the position alone
logprobs            the log probabilities that a request asked for
rows, sampled, host_copy    parameters by row, and results on their way to the host
"""
