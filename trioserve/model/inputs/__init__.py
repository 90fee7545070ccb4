"""The inputs of one step's forward pass.

inputs     token ids, positions and embeddings, laid out flat
grid       the rows of a step as tables of fixed sizes
reading    the forward pass from inputs to the last hidden states
"""
