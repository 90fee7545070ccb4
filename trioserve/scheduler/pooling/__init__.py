"""The scheduler of models that pool.

scheduler        admits whole inputs, in turns; its docstring has the policy
flow_queue       the waiting inputs of one client's requests
"""
