"""The memory and the time that the bodies of requests may take.

upload    receives one body in chunks, under deadlines
memory    the memory of all bodies, shared out between addresses, and given back to the system
"""
