"""Threads for long work, besides the renderer workers: new ones, stopped early.

    fresh_thread    runs a function in a thread of its own
    stopping        lets the function end early if its result is no longer needed

The package itself imports nothing: rooms without trio use `stopping` alone.
"""
