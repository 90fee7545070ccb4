"""The layers of a model, run by transformers' modules with this project's attention.

adapters    changes of the outputs of modules, by row
layers      the layers with a KV cache, ready to run a step
packing     weights in the layout that this device multiplies fastest
"""
