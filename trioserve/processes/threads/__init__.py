"""Threads besides the renderer workers: for long work, stopped early, and for lines of files.

    fresh_thread    runs a function in a thread of its own
    deep_stack      runs native code that calls itself very deeply
    heap            gives freed memory back
    line_writer     adds lines to a file that may be slow or full
    stopping        lets the function end early if its result is no longer needed

The package itself imports nothing: rooms without trio do not use `fresh_thread`.
"""
