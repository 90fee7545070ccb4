"""The scheduler of models that generate text.

scheduler        admits, plans, preempts and frees sequences; its docstring has the policy
sequence         one sequence, and the flow of one request's sequences
shared_queue     waiting flows in the order of their turns, for each client
running          running sequences and their slots
prompts          the prompts of a step, and the admission of new ones
draft            a step while it is planned
micro_batches    the decoding sequences of each step of a pipeline
time_share       the time of a step, for decoding and for prompts, and the turns of rows
block_tables     blocks for the tokens of sequences, found by prefix
window_blocks    blocks of layers with windows, given back behind the windows
blocks           a pool of KV blocks, and their hashes
counts           statistics and counters
"""
