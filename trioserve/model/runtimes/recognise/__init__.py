"""Finds the description of a model among transformers' modules.

    decoder     a decoder's layers, and what follows them
    encoder     the layers of an encoder of BERT's kind
    products    products, and their shapes
    experts     mixtures of experts
    formulas    what norms and activations compute
    given       what a model gives its layers, such as rotary angles

Modules are found by the attributes that transformers' models share. What they compute is
found by running them. A model that is not recognised runs by its modules.
"""
