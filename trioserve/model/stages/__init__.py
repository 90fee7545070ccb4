"""One stage of a model whose layers are spread over processes.

Each process is a *stage*: it has some of the layers, receives the hidden states of the
stage before it, and sends its own to the next stage. The first stage turns tokens into
vectors. The last stage samples, and sends the sampled tokens to the first one
(types/transfers.py says when).

This room knows torch, torch.distributed, and transformers where a model needs it. It does
not know how processes are started, how plans reach them, or who uses the results.
"""
