"""The input of one step's forward pass.

reading    the reader of a model's first layer: tokens, and vectors of prompts
inputs     the vectors that prompts hold besides tokens
grid       positions of images in a plane
"""
