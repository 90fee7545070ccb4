"""The weights of a GGUF file.

tensors     the tensors of a file in a model
processed   tensors by the rules of transformers' reader
ruled       tensors by rules of our own
source      what both have
content     the numbers of a file
"""
