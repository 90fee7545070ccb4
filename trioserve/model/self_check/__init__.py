"""Checks of a fast path against its oracle, on the machine that serves.

compare     the one table of tolerances, and the comparison
steps       steps of random tokens, for the layers of a decoder

A fast path that fails, or gives other numbers, is passed over with one sentence in the log.
"""
