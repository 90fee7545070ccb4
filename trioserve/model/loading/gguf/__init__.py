"""The weights of a GGUF file.

content     the numbers of a file
tensors     the tensors of a file in a model
"""
