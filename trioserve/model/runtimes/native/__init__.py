"""The layers of a model, run by native kernels in place of transformers' modules.

    parts           the weights of a decoder, found among the modules of its model
    products        its products, and the error for unknown modules
    experts         its mixtures of experts
    formulas        the formulas of its norms and activations
    given           the inputs of its layers, such as rotary angles
    packer          packs weights for the kernels
    decoder         the layers, with packed weights
    layers          the layers with a KV cache, ready to run a step
    scans           the scans of logits for sampling, with the threads of the layers
    check           compares its output with the modules' output
    choice          the choice between the kernels and the modules
    encoder_parts   the weights of an encoder of BERT's kind
    encoder         its layers, ready to run a step

A model is recognised by its modules and weights, and then compared with them. A model that
is not recognised, or does not pass, runs by its modules.
"""
