"""The layers of a model, run by transformers' modules with this project's attention.

layers      the layers with a KV cache, ready to run a step
packing     weights in the layout that this device multiplies fastest
"""
