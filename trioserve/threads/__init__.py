"""Threads for long work, besides the renderer workers: new ones, stopped early.

    fresh_thread    runs a function in a thread of its own
    deep_stack      runs native code that calls itself very deeply
    stopping        lets the function end early if its result is no longer needed

The package itself imports nothing: rooms without trio use `stopping` and `deep_stack` alone.
"""
