"""From a folder to a model: weights, quantisation, and what attention needs to know.

loading         a folder -> LoadedModel
outline         what is known of a model before its weights are read
quantisation    types of weights that are stored smaller than they are computed
packing         weights in the layout that this device multiplies fastest
rotary          position encodings that depend on the prompt's length
vision          the kinds of models that see, and their encoders
"""
