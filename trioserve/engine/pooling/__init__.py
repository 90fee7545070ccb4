"""The engine of models that pool: requests of many inputs, and their core.

engine       checks requests and hands out the tensors of their inputs
request      one open request
admission    checks of one input against the model
core         a pooling scheduler, and the loop that runs its plans
"""
