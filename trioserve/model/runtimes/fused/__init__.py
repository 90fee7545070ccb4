"""The layers of a decoder on a GPU: few products, and Triton's kernels between them.

It has the same place as native/, which runs decoders on CPUs, and finds the parts of a model
in the same way. A model that is not recognised there runs by transformers' modules.

products   modules that read the same input, as one product
low_bits   weights in fewer bits than 16
weights    the weights of a layer
mixers     attention, and the mixers that keep a state, with their caches
adapters   the changes of products by adapters; adapter_check tries them
layer      one layer
decoder    the decoder, and its layers with a KV cache
graphs     decodes as graphs; decode_inputs are the numbers that they read, and decode_check
           tries the kernels that read and choose their tokens
"""
