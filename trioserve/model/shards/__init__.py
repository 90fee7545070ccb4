"""One shard of a model whose layers are each split over processes (tensor parallelism).

Each process of a group has some heads of every attention, some columns and rows of every
feed-forward network and of every expert, and a part of the vocabulary. It computes a part of
each sum, and the group adds the parts up: twice a layer, and once for the embedding. The
tokens of a step are sampled by the first process alone, which sends them to the others.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3.

This room knows torch. Only choose.py, plan.py and weights.py know transformers.
"""
