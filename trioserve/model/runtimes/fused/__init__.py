"""The layers of a decoder on a GPU: few products, and Triton's kernels between them.

It has the same place as native/, which runs decoders on CPUs, and finds the parts of a model
in the same way. A model that is not recognised there runs by transformers' modules.

products   modules that read the same input, as one product
low_bits   weights as kernels multiply them, in 16 bits and in fewer
checks     the parts of decoders that these layers compute
weights    the weights of a layer; take_network takes those of its network
networks   the networks of layers: one for all tokens, or experts
mixers     attention, and the mixers that keep a state, with their caches
adapters   the changes of products by adapters; adapter_check tries them, and expert_products
           those of experts
layer      one layer
decoder    the decoder, and its layers with a KV cache
graphs     decodes as graphs; decode_inputs are the numbers that they read, and decode_check
           tries the kernels that read and choose their tokens
"""
