"""The programs besides the server: a chat, a batch, `top`, `bench`, a simulation, completion.

commands/ has one file a command: its arguments, and the call of the folder that does the work.
"""
