"""The planning of steps: continuous batching over paged KV blocks.

Sans-I/O: no trio, no torch, no clock, no logging. Every decision is a value, so tests run
through a thousand steps in a millisecond. The scheduler knows sequences, blocks, budgets
and the names of clients, who share them. It does not know requests, text or the time.

The doors are generation/scheduler.py, and pooling/scheduler.py for models that read each input
in one step. Both have the methods add, abort, schedule, update and statistics. What they share
lies beside them: the shares of clients, and the cost of steps.
"""
