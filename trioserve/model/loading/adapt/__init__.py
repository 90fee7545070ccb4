"""Changes to transformers' modules, so that they run on paged attention.

rotary       rotary embeddings whose frequencies do not change with the texts of a batch
temperature  the temperature of attention by given positions
latents      latents in the cache, in place of the keys and values of all heads
embeddings   factors of the vectors of tokens, in the embedding
step_limits  the limits of Mamba-2's time steps, as the configuration has them
indexers     no indexers of keys, for texts of which they choose all keys
"""
