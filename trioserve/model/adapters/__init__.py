"""LoRA adapters: small matrices that change the products of a model, for some rows of a step.

The ways to run layers compute them (runtimes/).

read            files -> an adapter's facts and matrices
peft, gguf      its formats; config, experts, files, names and dora help them
part            the part of an adapter for a stage, or for a shard
products        the products of a model that adapters may change
description     an adapter's matrices, and the protocol of layers that run adapters
"""
