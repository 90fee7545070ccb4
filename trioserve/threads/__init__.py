"""Threads for long work, besides the renderer workers: new ones, stopped early.

    fresh_thread    runs a function in a thread of its own
    stopping        lets the function end early once nobody wants its result

The package itself imports nothing: rooms without trio use `stopping` alone.
"""
