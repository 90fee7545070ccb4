"""The layers of a model, run by native kernels in place of transformers' modules.

    packer        packs weights for the kernels
    gguf_matrix   a matrix of a GGUF file, as it lies in the file
    decoder       the layers of a decoder, with packed weights
    joined        the products that adapters may change, as they are packed together
    adapters      adapters for these layers, packed
    states        the formulas of layers that keep a state
    layers        the layers with a KV cache, ready to run a step
    sums          sums over processes, in the middle of a step
    scans         the scans of logits for sampling, with the threads of the layers
    encoder       the layers of an encoder, ready to run a step

A model that is not recognised, or does not compute what its modules compute, runs by its modules.
"""
