"""The memory and the time that the bodies of requests may take.

upload           receives one body in chunks, under deadlines
memory_budget    the memory of all bodies together, shared out between addresses
heap             gives freed memory back to the system
"""
