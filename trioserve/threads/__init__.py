"""Threads apart from the renderer workers: started afresh, and stopped early.

    fresh_thread    runs a function in a thread of its own
    stopping        lets the function end early once nobody wants its result

The package itself imports nothing: rooms without trio use `stopping` alone.
"""
