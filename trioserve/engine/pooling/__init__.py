"""The engine of models that pool: requests of many inputs, and their core.

engine       checks requests and gathers the results of their inputs
admission    checks of one input against the model
core         a pooling scheduler and the loop that asks it
"""
