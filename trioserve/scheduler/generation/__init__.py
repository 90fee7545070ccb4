"""The scheduler of models that generate text.

scheduler        admits, plans, preempts and frees sequences; its docstring has the policy
sequence         one sequence, and the flow of one request's sequences
queue            waiting flows, in the order of their turns
shared_queue     a queue for each client
running          running sequences and their slots
prompts          the prompts of a step, and the admission of new ones
draft            a step while it is planned
micro_batches    the decoding sequences of each step of a pipeline
time_share       the time of a step, for decoding and for prompts
turns            rows that take turns if a step has no time for all
block_tables     blocks for the tokens of sequences, found by prefix
block_hashes     hashes of a sequence's blocks
blocks           the pool of KV blocks
counts           statistics and counters
"""
