"""A core in another process: the same calls as messages over a socket.

remote         the near side: a core that sends its calls away
core_server    the far side: receives them and answers
messages       the messages between both
"""
