"""The engine of models that generate text: requests, streams, and their core.

engine          checks requests and hands their tokens to their streams
admission       checks of one request against the model
token_stream    tokens on their way from the loop to one reader
core            a scheduler, and the loop that runs its plans
"""
