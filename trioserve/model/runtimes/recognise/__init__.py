"""Finds the description of a model among transformers' modules.

    decoder     a decoder's layers, its last norm and its head
    encoder     the layers of an encoder of BERT's kind
    products    products, and their shapes
    experts     mixtures of experts
    formulas    the formulas of norms and activations
    norms       the norms of layers
    rotation    the formula of attention, and the pairs that it rotates
    beside      mixtures beside feed-forward networks
    lookups     the vectors that layers look up for each token
    given       the inputs of layers, such as rotary angles

Modules are found by the attributes that transformers' models share. Their formulas are
found by running them. A model that is not recognised runs by its modules.
"""
